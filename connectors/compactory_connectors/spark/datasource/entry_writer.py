"""``df.write.format("compactory")`` into a directory mastered in Kafka: its server takes the rows.

One process at a time writes such a directory; a producer of the job's own would fence it, and be fenced by its next
write. So tasks send their rows to the server as any client does: a row is checked as a PUT is, and written as one.
Decimals and bytes become text, in all digits and in base64; dates and times ISO 8601, of a zone in UTC.
Spark calls `write` and `commit` in processes of their own.
"""

from __future__ import annotations

from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from hashlib import sha256
from typing import Any, Final, TypeAlias

import numpy as np
import orjson
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from compactory.errors import CompactoryError, ConfigError, EntryMissing, WriteRefused
from compactory.write.operation import Operation
from compactory_client import Client, Entries

from ..typed.typed_rows import ERROR, OPERATION
from .columns import RECORD
from .options import write_problems

__all__ = ["EntryWriter", "entry_writer"]

_NAMES: Final = ("directory", "url", "token", "timeout", "loadId", "ignoreNullFields")
_KEY: Final = "_key"
_SHOWN: Final = 5
"""Refusals that are told, with their keys."""
_LONGEST: Final = 80

Json: TypeAlias = Callable[[Any], Any]
"""Makes of a value, as Arrow hands it to Python, what JSON has for it."""


@dataclass
class _Sent(WriterCommitMessage):
    """The outcome of a task's rows."""

    written: int = 0
    refused: int = 0
    reasons: list[str] = field(default_factory=list)
    """Of the first that were refused."""


@dataclass
class _Rows:
    """How rows become operations."""

    writers: Mapping[str, Json]
    """Of the fields of the value."""
    keyed: bool
    removes: bool
    nulls: bool
    load_id: str | None

    def operations(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Operation]:
        """Raises WriteRefused for a row without a key, and for an operation that is none."""
        for batch in batches:
            nothing = [None] * batch.num_rows
            keys = batch.column(_KEY).to_pylist() if self.keyed else nothing
            kinds = batch.column(OPERATION).to_pylist() if self.removes else nothing
            columns = [map(write, batch.column(name).to_pylist()) for name, write in self.writers.items()]
            rows = zip(*columns, strict=True) if columns else [()] * batch.num_rows
            for key, kind, row in zip(keys, kinds, rows, strict=True):
                value = dict(zip(self.writers, row, strict=True))
                kept = value if self.nulls else {name: each for name, each in value.items() if each is not None}
                yield self._operation(key, kind, kept)

    def _operation(self, key: str | None, kind: str | None, value: dict[str, Any]) -> Operation:
        if self.keyed and key is None:
            raise WriteRefused(f"column {_KEY} is null in a row: filter such rows out")
        if kind not in (None, "put", "delete"):
            raise WriteRefused(f"{key!r}: column {OPERATION} must be put or delete, not {kind!r}")
        repeat = None
        if self.load_id is not None:
            name = [self.load_id, key] if self.keyed else [self.load_id, value]
            repeat = sha256(orjson.dumps(name)).hexdigest()
        if kind == "delete":
            return Operation(kind="delete", key=key, idempotency_key=repeat)
        return Operation(kind="put" if self.keyed else "post", key=key, value=value, idempotency_key=repeat)


class EntryWriter(DataSourceArrowWriter):
    """Writes the rows of a DataFrame as entries. Made by :func:`entry_writer`."""

    def __init__(self, directory: str, client: Mapping[str, Any], rows: _Rows) -> None:
        self._directory = directory
        self._client = client  # the token among it: never log it
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition; what is refused is told by `commit`. Raises CompactoryError: part may be written."""
        with Client(**self._client) as client:
            return _sent(client.directory(self._directory), self._rows.operations(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Raise WriteRefused where rows were refused; the others are written all the same."""
        sent = [message for message in messages if isinstance(message, _Sent)]
        refused = sum(each.refused for each in sent)
        if refused:
            reasons = "; ".join([reason for each in sent for reason in each.reasons][:_SHOWN])
            written = sum(each.written for each in sent)
            told = f"{refused:,} rows were refused, and {written:,} are written: {reasons}"
            raise WriteRefused(f"directory {self._directory!r}: {told}")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave what was written: readers have seen it."""


def _sent(entries: Entries[Any], operations: Iterator[Operation]) -> _Sent:
    """Send operations; an error that a repeat may cure ends the task, and Spark decides whether it tries again."""
    sent, under_way = _Sent(), deque[Operation]()

    def noted() -> Iterator[Operation]:
        for operation in operations:
            under_way.append(operation)
            yield operation

    for result in entries.bulk(noted()):
        operation = under_way.popleft()
        gone = isinstance(result, EntryMissing) and operation.kind == "delete"
        if not isinstance(result, CompactoryError) or gone:
            sent.written += 1
            continue
        if result.retryable:
            raise result
        sent.refused += 1
        if len(sent.reasons) < _SHOWN:
            sent.reasons.append(f"{(operation.key or 'a row')[:_LONGEST]}: {' '.join(str(result).split())}")
    return sent


def entry_writer(options: Mapping[str, str], schema: t.StructType, overwrite: bool) -> EntryWriter:
    """Check everything but the rows. Raises ConfigError with every problem."""
    given = {name.lower(): value for name, value in options.items()}
    problems = write_problems(options, _NAMES, ("timeout",), overwrite)
    problems += [f"option {name} is missing" for name in ("directory", "url") if not given.get(name)]
    if given.get("ignorenullfields", "true") not in ("true", "false"):
        problems.append("option ignoreNullFields must be true or false")
    nulls = given.get("ignorenullfields") == "false"
    columns = {column.name: column.dataType for column in schema.fields}
    problems += [
        f"column {name} must be of type string: cast it"
        for name in (_KEY, OPERATION)
        if name in columns and not isinstance(columns[name], t.StringType)
    ]
    problems += [f"column {name} can't be written: drop it" for name in ("_value", ERROR) if name in columns]
    if OPERATION in columns and _KEY not in columns:
        problems.append(f"column {OPERATION} needs column {_KEY}: a deletion needs a key")
    writers: dict[str, Json] = {}
    for name, kind in columns.items():
        try:
            if name not in RECORD.names:
                writers[name] = _json_of(kind, nulls=nulls)
        except ConfigError as error:
            problems.append(f"column {name}: {error}")
    if problems:
        raise ConfigError(problems)
    client: dict[str, Any] = {name: given[name] for name in ("url", "token") if name in given}
    client["timeout"] = float(given.get("timeout", 60))
    Client(**client).close()
    rows = _Rows(writers, _KEY in columns, OPERATION in columns, nulls, given.get("loadid"))
    return EntryWriter(given["directory"], client, rows)


def _json_of(kind: t.DataType, *, nulls: bool) -> Json:
    """The function of values of a type; None stays None. ``nulls``: structs have fields that are null.

    Raises ConfigError for a type that JSON has no form of.
    """
    write = _writer(kind, nulls)
    return lambda value: None if value is None else write(value)


def _writer(kind: t.DataType, nulls: bool) -> Json:
    match kind:
        case t.StringType() | t.BooleanType() | t.IntegralType() | t.DoubleType():
            return lambda value: value
        case t.FloatType():  # the number that its shortest digits are, not the nearest one in binary
            return lambda value: float(str(np.float32(value)))
        case t.DecimalType():
            return lambda value: f"{value:f}"
        case t.BinaryType():
            return lambda value: b64encode(value).decode()
        case t.TimestampType():
            return lambda value: value.astimezone(UTC).isoformat()
        case t.DateType() | t.TimestampNTZType():
            return lambda value: value.isoformat()
        case t.ArrayType():
            item = _json_of(kind.elementType, nulls=nulls)
            return lambda values: [item(value) for value in values]
        case t.MapType(keyType=t.StringType()):
            item = _json_of(kind.valueType, nulls=nulls)
            return lambda pairs: {key: item(value) for key, value in pairs}
        case t.StructType():
            fields = {field.name: _json_of(field.dataType, nulls=nulls) for field in kind.fields}
            return lambda row: {
                name: write(row[name]) for name, write in fields.items() if nulls or row[name] is not None
            }
    raise ConfigError(f"JSON has nothing for type {kind.simpleString()}: cast it to string")
