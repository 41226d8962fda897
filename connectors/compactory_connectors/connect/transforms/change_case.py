"""``ChangeCase$Key/$Value``: field names from one case format to another.

The class is com.github.jcustenborder.kafka.connect.transform.common.ChangeCase, the formats are those of Guava's
``CaseFormat``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from string import ascii_lowercase, ascii_uppercase

from ..record.record import Node, Record, StructNode
from ..record.schema import Field, Schema, Type
from ..setting import one_of, option
from .transform import Sided, TransformError

__all__ = ["CaseFormat", "ChangeCase", "change_case"]


def _upper(word: str) -> str:
    """Return ``Ascii.toUpperCase`` of Guava: ASCII letters only."""
    return word.translate(_UPPER)


def _lower(word: str) -> str:
    return word.translate(_LOWER)


def _first_upper(word: str) -> str:
    return _upper(word[:1]) + _lower(word[1:])


_UPPER = str.maketrans(ascii_lowercase, ascii_uppercase)
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)


class CaseFormat(Enum):
    """Guava's formats: the separator of words, and the functions that write a word and the first word."""

    LOWER_HYPHEN = ("-", _lower, _lower)
    LOWER_UNDERSCORE = ("_", _lower, _lower)
    LOWER_CAMEL = ("", _first_upper, _lower)
    UPPER_CAMEL = ("", _first_upper, _first_upper)
    UPPER_UNDERSCORE = ("_", _upper, _upper)

    @property
    def separator(self) -> str:
        """Return the text between two words."""
        return self.value[0]

    def words(self, name: str) -> list[str]:
        """Return the words of ``name``: parted by the separator, or begun by upper-case ASCII letters."""
        if self.separator:
            return name.split(self.separator)
        starts = [0, *(i for i, c in enumerate(name) if i and "A" <= c <= "Z"), len(name)]
        return [name[start:end] for start, end in pairwise(starts)]

    def join(self, words: list[str]) -> str:
        """Return ``words`` in this format."""
        separator, word, first = self.value
        return str(separator).join([first(words[0]), *map(word, words[1:])])


def change_case(name: str, source: CaseFormat, target: CaseFormat) -> str:
    """Return ``name`` as Guava's ``source.to(target, name)`` does; equal formats leave it as it is."""
    if source is target:
        return name
    if {source, target} == {CaseFormat.LOWER_HYPHEN, CaseFormat.LOWER_UNDERSCORE}:  # Guava leaves the words alone
        return name.replace(source.separator, target.separator)
    return target.join(source.words(name))


def _format(written: str) -> CaseFormat:
    return CaseFormat[_NAMES(written)]


_NAMES = one_of(*CaseFormat.__members__)


@dataclass(frozen=True, slots=True)
class ChangeCase(Sided):
    """Renames every field, nested ones too.

    As by the Java class, structs lose version, doc and parameters.
    """

    source: CaseFormat = option("the format that the names have", parse=_format, name="from")
    target: CaseFormat = option("the format that the names get", parse=_format, name="to")

    def apply(self, record: Record) -> Record:
        half = self.side.of(record)
        if half is None:
            return record
        if half.schema.type is not Type.STRUCT:
            raise TransformError(f"the {self.side} is not a struct, so it has no names to change")
        return self.side.put(record, self._renamed(half))

    def _renamed(self, node: Node) -> Node:
        if not isinstance(node, StructNode):
            return node
        return StructNode(self._schema(node.schema), tuple(map(self._renamed, node.members)))

    def _schema(self, schema: Schema) -> Schema:
        names = [change_case(item.name, self.source, self.target) for item in schema.fields]
        doubled = [name for name, count in Counter(names).items() if count > 1]
        if doubled:
            old_names = [item.name for item, name in zip(schema.fields, names, strict=True) if name == doubled[0]]
            raise TransformError(f"{' and '.join(old_names)} both become {doubled[0]}")
        inner = (
            self._schema(item.schema) if item.schema.type is Type.STRUCT else item.schema for item in schema.fields
        )
        fields = tuple(map(Field, names, inner))
        return Schema(type=Type.STRUCT, optional=schema.optional, name=schema.name or None, fields=fields)
