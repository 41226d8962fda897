"""``InsertHeader``, ``DropHeaders``, ``HeaderFrom$Key/$Value``: headers of records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...setting import Setting, nearest, non_empty_names, one_of, required_text
from ..record import Constant, Java, Node, Record
from ..schema import Schema, Type
from .transform import NO_DEFAULTS, Sided, Steady, TransformError, struct_of

__all__ = ["DropHeaders", "HeaderFrom", "InsertHeader"]

_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_PLAIN = re.compile(r"[A-Za-z_/ -][A-Za-z_/ .@-]*[A-Za-z_/.@-]|[A-Za-z_/]")
_NUMBERS = {"nan", "infinity"}


def _literal(written: str) -> str | None:
    """A literal that Kafka Connect reads and writes without changing it; None is ``null``.

    Connect takes it for a number, a date, a list or a map where it looks like one, and writes it afresh.
    """
    if written == "null":
        return None
    plain = _PLAIN.fullmatch(written) and written.strip("-").lower() not in _NUMBERS and not written.startswith(" ")
    if not plain and not _WHOLE.fullmatch(written):
        raise ValueError("must be plain words, a whole number, true, false or null: other values are not supported")
    return written


@dataclass(frozen=True, slots=True)
class InsertHeader(Steady):
    """The same header on every record."""

    options: ClassVar[tuple[Setting, ...]] = (
        Setting(name="header", meaning="name of the header", parse=required_text),
        Setting(name="value.literal", meaning="words, a whole number, true, false or null", parse=_literal),
    )

    name: str
    value: str | None

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> InsertHeader:
        """The transform with these options."""
        return cls(options["header"], options["value.literal"])

    def apply(self, record: Record) -> Record:
        """``record`` with the header behind those that it has."""
        schema = Schema(type=Type.STRING, optional=True)
        value = Constant(schema=schema, java=Java.STRING, value=self.value)
        return replace(record, headers=(*record.headers, (self.name, value)))


@dataclass(frozen=True, slots=True)
class DropHeaders(Steady):
    """Takes headers off."""

    options: ClassVar[tuple[Setting, ...]] = (
        Setting(name="headers", meaning="names of the headers to take off", parse=non_empty_names),
    )

    names: tuple[str, ...]

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> DropHeaders:
        """The transform with these options."""
        return cls(options["headers"])

    def apply(self, record: Record) -> Record:
        """``record`` without the headers."""
        return replace(record, headers=tuple(item for item in record.headers if item[0] not in self.names))


@dataclass(frozen=True, slots=True)
class HeaderFrom(Sided):
    """Copies or moves fields to headers."""

    options: ClassVar[tuple[Setting, ...]] = (
        Setting(name="fields", meaning="fields that become headers", parse=non_empty_names),
        Setting(name="headers", meaning="names of the headers, in the order of fields", parse=non_empty_names),
        Setting(name="operation", meaning="whether the fields stay", parse=one_of("move", "copy")),
        NO_DEFAULTS,
    )

    fields: tuple[str, ...]
    headers: tuple[str, ...]
    move: bool

    @classmethod
    def read(cls, side: Any, options: Mapping[str, Any]) -> HeaderFrom:
        """The transform with these options. Raises ValueError for lists of different lengths."""
        fields, headers = options["fields"], options["headers"]
        if len(fields) != len(headers):
            raise ValueError(f"fields names {len(fields)} and headers {len(headers)}; give every field a header")
        return cls(side, fields, headers, options["operation"] == "move")

    def apply(self, record: Record) -> Record:
        """``record`` with the headers."""
        half = self.side.struct(record, "HeaderFrom")
        there = [item.name for item in half.schema.fields]
        added: list[tuple[str, Node]] = []
        for field, header in zip(self.fields, self.headers, strict=True):
            node = half.member(field)
            if node is None:
                raise TransformError(f"the {self.side} has no field {field}{nearest(field, there)}")
            added.append((header, node))
        record = replace(record, headers=(*record.headers, *added))
        if not self.move:
            return record
        left = [(name, node) for name, node in zip(there, half.members, strict=True) if name not in self.fields]
        return self.side.put(record, struct_of(replace(half.schema, optional=False), left))
