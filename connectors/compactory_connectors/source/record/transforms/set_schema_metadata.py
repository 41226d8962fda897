"""``SetSchemaMetadata$Key/$Value``: name and version of the schema (org.apache.kafka.connect.transforms)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...setting import Setting, text
from ..record import Record
from ..schema import Type
from .transform import NO_DEFAULTS, Side, Steady, TransformError

__all__ = ["SetSchemaMetadata"]


def _version(written: str) -> int | None:
    if not written:
        return None
    try:
        number = int(written)
    except ValueError:
        number = 1 << 31
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError("must be a whole number of 32 bits")
    return number


@dataclass(frozen=True, slots=True)
class SetSchemaMetadata(Steady):
    """Only converters that write schemas show the difference. The half must be a struct, or missing."""

    options: ClassVar[tuple[Setting, ...]] = (
        Setting(name="schema.name", meaning="the schema's name; empty: as it is", default="", parse=text),
        Setting(name="schema.version", meaning="the schema's version; empty: as it is", default="", parse=_version),
        NO_DEFAULTS,
    )

    side: Side
    name: str | None
    version: int | None

    @classmethod
    def read(cls, side: Side, options: Mapping[str, Any]) -> SetSchemaMetadata:
        """The transform with these options. Raises ValueError where there is nothing to set."""
        if not options["schema.name"] and options["schema.version"] is None:
            raise ValueError("nothing to set; give schema.name or schema.version")
        return cls(side, options["schema.name"] or None, options["schema.version"])

    def apply(self, record: Record) -> Record:
        """``record`` with the schema of its half changed; a missing key stays missing."""
        half = self.side.of(record)
        if half is None:
            return record
        old = half.schema
        if old.type is not Type.STRUCT:
            raise TransformError(f"the {self.side} is not a struct, and Kafka Connect fails on anything else")
        new = replace(old, name=self.name or old.name, version=old.version if self.version is None else self.version)
        return self.side.put(record, replace(half, schema=new))
