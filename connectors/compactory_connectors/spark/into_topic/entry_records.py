"""Records of a directory that is mastered in Kafka, as a DirectoryWriter writes them: JSON objects under a text key.

What JSON has no like of is text: decimals and dates in Postgres' spelling, times in ISO 8601 (RFC 3339 where there is a
zone), bytes in base64; a json or jsonb column is part of the object. Sources: ``compactory.codec.encoding``, RFC 8259.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import orjson
import pyarrow as pa

from compactory.codec.encoding import Encoding
from compactory.directory import Directory
from compactory.errors import ConfigError, WriteRefused
from compactory_connectors.source.record.record import RowError

from ..column_types import ColumnType, parse_type
from ..target import TargetColumn
from .postgres_text import text_of
from .record_maker import Made

__all__ = ["EntryRecords"]

_AS_NUMBERS = {"smallint", "int", "bigint", "double", "boolean"}
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
            raise ConfigError(f"{name}: has no connector, so the rules have to say what its columns are")
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
            raise ConfigError(f"{name}: has envelope={directory.envelope!r}: whoever makes envelopes writes it")
        Encoding(directory)
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
        """What a load fills."""
        return tuple(
            TargetColumn(name=name, type=kind, nullable=name != self.key_column) for name, kind in self.types.items()
        )

    @property
    def tells_keys(self) -> bool:
        """See :class:`record_maker.Maker`."""
        return True

    def keys(self, names: Sequence[str]) -> Callable[[pa.RecordBatch], Iterator[bytes | None]]:
        """See :class:`record_maker.Maker`."""
        position, read = names.index(self.key_column), _reader(parse_type(self.types[self.key_column]))

        def make(batch: pa.RecordBatch) -> Iterator[bytes | None]:
            for key in read(batch.column(position)):
                yield None if key is None or isinstance(key, RowError) else _key(key).encode()

        return make

    def compiled(self, names: Sequence[str]) -> Callable[[pa.RecordBatch], Iterator[Made | None]]:
        """See :class:`record_maker.Maker`."""
        kinds = {name: parse_type(kind) for name, kind in self.types.items()}
        columns = [(name, names.index(name), _reader(kind)) for name, kind in kinds.items()]
        encoding, key_at = Encoding(self.directory), list(kinds).index(self.key_column)
        fields = list(kinds)

        def make(batch: pa.RecordBatch) -> Iterator[Made | None]:
            values = [read(batch.column(position)) for _, position, read in columns]
            for row in zip(*values, strict=True):
                yield _entry(encoding, row[key_at], dict(zip(fields, row, strict=True)))

        return make


def _key(value: Any) -> str:
    """A key as text, whole numbers in decimal."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _entry(encoding: Encoding[Any], key: Any, entry: dict[str, Any]) -> Made:
    if key is None:
        return Made(problem="the key is null")
    for name, value in entry.items():
        if isinstance(value, RowError):
            return Made(problem=f"column {name}: {value}")
    try:
        return Made(*encoding.record(_key(key), entry))
    except WriteRefused as error:
        return Made(problem=str(error))


def _reader(kind: ColumnType) -> Callable[[pa.Array], list[Any]]:
    """A column's values as a dict would have them."""
    if kind.name in _DOCUMENTS:
        return lambda column: [None if text is None else _document(text) for text in column.to_pylist()]
    if kind.spark == "float":  # the number that its shortest digits are, not the nearest one in binary
        shortest = text_of(kind)
        return lambda column: [float(text) if isinstance(text, bytes) else text for text in shortest(column)]
    if kind.spark in _AS_NUMBERS or kind.spark == "string":
        return lambda column: column.to_pylist()
    if kind.spark == "binary":
        return lambda column: [None if raw is None else b64encode(raw).decode() for raw in column.to_pylist()]
    write = text_of(kind)
    spell = _iso if kind.spark.startswith("timestamp") else _text
    return lambda column: [spell(text) if isinstance(text, bytes) else text for text in write(column)]


def _text(text: bytes) -> str:
    return text.decode()


def _iso(text: bytes) -> str:
    return text.decode().replace(" ", "T", 1).replace("+00", "+00:00", 1)


def _document(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return RowError("is no JSON")
