"""``ExtractField$Key/$Value``: a struct becomes one of its fields (org.apache.kafka.connect.transforms)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ...setting import Setting, nearest, required_text
from ..record import Constant, Java, Node, Record, StructNode
from ..schema import Schema
from .transform import NO_DEFAULTS, Sided, TransformError, absent, nullable

__all__ = ["ExtractField", "field_path"]


def _version(written: str) -> str:
    if written.upper() not in {"V1", "V2"}:
        raise ValueError("must be V1 or V2")
    return written.upper()


def field_path(text: str) -> tuple[str, ...]:
    """The names in a path of syntax V2: dots part them, backticks around a name let it have dots (KIP-821).

    Raises ValueError for a backtick that is not closed.
    """
    steps: list[str] = []
    at = 0
    while at < len(text):
        if text[at] == "`":
            step, at = _quoted(text, at)
        else:
            end = text.find(".", at)
            step, at = (text[at:], len(text)) if end < 0 else (text[at:end], end + 1)
        steps.append(step)
    return (*steps, "") if text.endswith(".") else tuple(steps)


def _quoted(text: str, opening: int) -> tuple[str, int]:
    """A name in backticks, and where the next begins; one that is followed by a dot or the end closes it."""
    name, start, at = "", opening + 1, opening + 1
    while (at := text.find("`", at)) >= 0:
        escaped = text[at - 1] == "\\"
        if at == len(text) - 1:
            if escaped:
                break
            return name + text[start:at], at + 1
        if text[at + 1] == ".":
            if not escaped:
                return name + text[start:at], at + 2
            name, start = name + text[start : at - 1] + "`", at + 1
        at += 1
    raise ValueError(f"the backtick at position {opening} of {text!r} is not closed; a backslash escapes one")


@dataclass(frozen=True, slots=True)
class ExtractField(Sided):
    """Puts a field in place of the whole key or value. A missing key stays missing, null stays null."""

    options: ClassVar[tuple[Setting, ...]] = (
        Setting(name="field", meaning="the field to extract", parse=required_text),
        Setting(
            name="field.syntax.version",
            meaning="V2 reads dots in the field's name as a path",
            default="V1",
            parse=_version,
        ),
        NO_DEFAULTS,
    )

    field: str
    path: tuple[str, ...]

    @classmethod
    def read(cls, side: Any, options: Mapping[str, Any]) -> ExtractField:
        """The transform with these options. Raises ValueError for a malformed path."""
        field = options["field"]
        try:
            return cls(side, field, field_path(field) if options["field.syntax.version"] == "V2" else (field,))
        except ValueError as error:
            raise ValueError(f"field: {error}") from None

    def undecided(self, record: Record) -> Node | None:
        """The first struct on the path that can be null."""
        node = self.side.of(record)
        for step in self.path:
            if not isinstance(node, StructNode):
                return None
            if (found := nullable(node)) is not None:
                return found
            node = node.member(step)
        return None

    def apply(self, record: Record) -> Record:
        """``record`` with the field in place of its half."""
        node = self.side.of(record)
        if node is None:
            return record
        for step in self.path:
            node = self._member(node, step)
        return self.side.put(record, node)

    def _member(self, node: Node, step: str) -> Node:
        if node.schema.fields and absent(node):
            nulls = (_null(item.schema) for item in node.schema.fields if item.name == step)
            return self._known(next(nulls, None), node.schema)
        if not isinstance(node, StructNode):
            raise TransformError(f"the {self.side} is not a struct, so it has no field {self.field}")
        return self._known(node.member(step), node.schema)

    def _known(self, node: Node | None, schema: Schema) -> Node:
        if node is None:
            names = [item.name for item in schema.fields]
            hint = f"{nearest(self.field, names)} (it has {', '.join(names)})"
            raise TransformError(f"the {self.side} has no field {self.field}{hint}")
        return node


def _null(schema: Schema) -> Constant:
    return Constant(schema=schema, java=Java.STRING, value=None)
