"""Records of a directory that is mastered in Kafka, as a DirectoryWriter writes them: JSON objects under a text key.

What JSON has no like of is text: decimals and dates in Postgres' spelling, times in ISO 8601 (RFC 3339 where there is a
zone), bytes in base64; a json or jsonb column is part of the object. Sources: ``compactory.codec.encoding``, RFC 8259.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import orjson
import pyarrow as pa

from compactory.codec.encoding import RecordEncoder
from compactory.directory import Directory
from compactory.errors import ConfigError, WriteRefused
from compactory_connectors.connect.record.record import RowError

from ..column_types import parse_type
from ..identifier import quoted
from ..target import TargetColumn
from .record_maker import Made

__all__ = ["EntryRecords"]

_WRITTEN = {
    "float": "double(string({}))",  # the number that its shortest digits are, not the nearest one in binary
    "binary": "base64({})",
    "date": "string({})",
    "timestamp_ntz": "replace(string({}), ' ', 'T')",
    "timestamp": "concat(replace(string({}), ' ', 'T'), '+00:00')",
}
"""Expressions of Spark for columns of types that JSON lacks, by Spark's types."""
_DOCUMENTS = {"json", "jsonb"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRecords:
    """How rows become entries of a directory."""

    directory: Directory[Any]
    types: Mapping[str, str]
    """Columns in the order of the object's fields, and their types."""
    key_column: str

    @classmethod
    def of(cls, directory: Directory[Any], types: Mapping[str, str], key: Sequence[str]) -> Self:
        """Raises ConfigError where the directory can't be written, or no one column is its key."""
        name = f"directory {directory.name!r}"
        if directory.rules is not None:
            raise ConfigError(f'{name}: its servers write it (mastered = "kafka"); write a DataFrame through one')
        if not types:
            raise ConfigError(f"{name}: has no connector, so list its columns in the rules")
        wanted = [directory.key] if directory.key is not None else list(key)
        if len(wanted) != 1:
            given = ", ".join(wanted) or "none"
            raise ConfigError(f"{name}: the key of a record is one column, and the rules' key is {given}")
        (column,) = wanted
        if column not in types:
            raise ConfigError(
                f"{name}: its key is the field {column!r}, which is none of the columns: {', '.join(types)}"
            )
        if directory.envelope != "none":
            raise ConfigError(f"{name}: has envelope={directory.envelope!r}: only their producer writes it")
        RecordEncoder(directory)
        return cls(directory=directory, types=dict(types), key_column=column)

    @property
    def needs(self) -> tuple[str, ...]:
        """See :class:`record_maker.Maker`."""
        return tuple(self.types)

    @property
    def key(self) -> tuple[str, ...]:
        """The column of the record's key."""
        return (self.key_column,)

    @property
    def columns(self) -> tuple[TargetColumn, ...]:
        """The columns that a load fills."""
        return tuple(
            TargetColumn(name=name, type=kind, nullable=name != self.key_column) for name, kind in self.types.items()
        )

    @property
    def tells_keys(self) -> bool:
        """See :class:`record_maker.Maker`."""
        return True

    def written(self, name: str) -> str:
        """See :class:`record_maker.Maker`."""
        held = parse_type(self.types[name]).spark
        form = "string({})" if held.startswith("decimal") else _WRITTEN.get(held, "{}")
        return f"{form.format(quoted(name))} AS {quoted(name)}"

    def compiled(self, names: Sequence[str]) -> Callable[[pa.RecordBatch], Iterator[Made | None]]:
        """See :class:`record_maker.Maker`."""
        fields = [name for name in self.types if name in names]
        key_at, positions = fields.index(self.key_column), [names.index(name) for name in fields]
        encoding = RecordEncoder(self.directory) if len(fields) == len(self.types) else None

        def make(batch: pa.RecordBatch) -> Iterator[Made | None]:
            values = [self._values(name, batch.column(at)) for name, at in zip(fields, positions, strict=True)]
            for row in zip(*values, strict=True):
                yield _entry(encoding, row[key_at], dict(zip(fields, row, strict=True)))

        return make

    def _values(self, name: str, column: pa.Array) -> list[Any]:
        """A column's values as a dict would have them."""
        values: list[Any] = column.to_pylist()
        if parse_type(self.types[name]).name not in _DOCUMENTS:
            return values
        return [None if text is None else _document(text) for text in values]


def _key(value: Any) -> str:
    """A key as text, whole numbers in decimal."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _entry(encoding: RecordEncoder[Any] | None, key: Any, entry: dict[str, Any]) -> Made:
    if key is None:
        return Made(problem="the key is null")
    for name, value in entry.items():
        if isinstance(value, RowError):
            return Made(problem=f"column {name}: {value}")
    if encoding is None:
        return Made(_key(key).encode())
    try:
        return Made(*encoding.record(_key(key), entry))
    except WriteRefused as error:
        return Made(problem=str(error))


def _document(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return RowError("is no JSON")
