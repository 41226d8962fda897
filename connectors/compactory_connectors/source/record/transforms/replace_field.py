"""``ReplaceField$Key/$Value``: fields left out, kept or renamed (org.apache.kafka.connect.transforms)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...setting import Setting, names
from ..record import Record
from .transform import NO_DEFAULTS, Sided, TransformError, absent, struct_of, warned

__all__ = ["ReplaceField"]


def _renames(written: str) -> Mapping[str, str]:
    renames: dict[str, str] = {}
    for part in names(written):
        pieces = part.split(":")
        if len(pieces) != 2 or not all(pieces):
            raise ValueError(f"must be pairs old:new: {part} is none")
        renames[pieces[0]] = pieces[1]
    twice = [name for name, count in Counter(renames.values()).items() if count > 1]
    if twice:
        raise ValueError(f"must give every field a name of its own: {twice[0]} is there more than once")
    return renames


@dataclass(frozen=True, slots=True)
class ReplaceField(Sided):
    """``exclude`` wins over ``include``; both go by the old names."""

    options: ClassVar[tuple[Setting, ...]] = (
        Setting(name="exclude", meaning="fields to leave out", default="", parse=names),
        Setting(name="include", meaning="fields to keep; empty: all", default="", parse=names),
        Setting(name="renames", meaning="pairs old:new", default="", parse=_renames),
        Setting(name="blacklist", meaning="older name of exclude", default="", parse=names),
        Setting(name="whitelist", meaning="older name of include", default="", parse=names),
        NO_DEFAULTS,
    )

    exclude: tuple[str, ...]
    include: tuple[str, ...]
    renames: Mapping[str, str]

    @classmethod
    def read(cls, side: Any, options: Mapping[str, Any]) -> ReplaceField:
        """The transform with these options. Raises ValueError where an option and its older name are both given."""
        for new, old in (("exclude", "blacklist"), ("include", "whitelist")):
            if options[new] and options[old]:
                raise ValueError(f"{old} is the older name of {new}; leave it out")
        return cls(
            side,
            options["exclude"] or options["blacklist"],
            options["include"] or options["whitelist"],
            options["renames"],
        )

    def apply(self, record: Record) -> Record:
        """``record`` with the fields that stay, under their new names; a missing or null half stays as it is."""
        if absent(self.side.of(record)):
            return record
        half = self.side.struct(record, "ReplaceField")
        old_names = {new: old for old, new in self.renames.items()}
        members = []
        for item, node in zip(half.schema.fields, half.members, strict=True):
            if item.name in self.exclude or (self.include and item.name not in self.include):
                continue
            name = self.renames.get(item.name, item.name)
            if half.member(old_names.get(name, name)) is None:
                raise TransformError(
                    f"renames: {old_names[name]}:{name} names a field that is not there, while {name} is"
                )
            members.append((name, node))
        wanted = dict.fromkeys((*self.exclude, *self.include, *self.renames))
        record = warned(record, "ReplaceField", half, wanted, self.side)
        return self.side.put(record, struct_of(replace(half.schema, optional=False), members))
