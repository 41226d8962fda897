"""``df.write.format("compactory")`` into a directory mastered in Kafka: its server writes the rows.

One process at a time writes such a directory. A producer of the job would fence that process, and be fenced by its next
write. So tasks send their rows to the server as any client does, and each row is checked as a PUT is.
Spark calls `write` and `commit` in processes of their own.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final

import orjson
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from compactory.errors import CompactoryError, ConfigError, EntryMissing, WriteRefused
from compactory.write.operation import Operation
from compactory_client import Client, Entries

from ..typed.json_objects import JsonRow, JsonRows
from .options import write_problems

__all__ = ["EntryWriter", "entry_writer"]

log = logging.getLogger("compactory.spark")

_OPTIONS: Final = ("directory", "url", "token", "timeout", "loadId", "ignoreNullFields")
_EXAMPLES: Final = 5
"""Refused rows that the error names, with their keys."""
_LONGEST: Final = 80


@dataclass
class _Sent(WriterCommitMessage):
    """The outcome of a task's rows. ``reasons`` are those of the first refused rows."""

    written: int = 0
    refused: int = 0
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class EntryWriter(DataSourceArrowWriter):
    """Writes the rows of a DataFrame as entries. Made by :func:`entry_writer`.

    ``client`` are the arguments of the client, with the token: never log them. A row that is sent again under the same
    ``load_id`` is written once.
    """

    directory: str
    client: Mapping[str, Any] = field(repr=False)
    rows: JsonRows
    load_id: str | None

    def of_load(self, load_id: str) -> EntryWriter:
        """Return a writer that writes under this id."""
        return replace(self, load_id=load_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition; `commit` tells which rows were refused. Raises CompactoryError: part may be written."""
        with Client(**self.client) as client:
            return _send(client.directory(self.directory), map(self._operation, self.rows.rows(iterator)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Raise WriteRefused if rows were refused; the other rows are written."""
        outcomes = [message for message in messages if isinstance(message, _Sent)]
        refused = sum(outcome.refused for outcome in outcomes)
        if refused:
            reasons = "; ".join([reason for outcome in outcomes for reason in outcome.reasons][:_EXAMPLES])
            written = sum(outcome.written for outcome in outcomes)
            raise WriteRefused(
                f"directory {self.directory!r}: {refused:,} rows were refused, and {written:,} are written: {reasons}"
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave what was written: readers have seen it."""

    def _operation(self, row: JsonRow) -> Operation:
        repeat = None
        if self.load_id is not None:
            identity = [self.load_id, row.value if row.key is None else row.key]
            repeat = sha256(orjson.dumps(identity)).hexdigest()
        if row.is_delete:
            return Operation(kind="delete", key=row.key, idempotency_key=repeat)
        return Operation(
            kind="post" if row.key is None else "put", key=row.key, value=row.value, idempotency_key=repeat
        )


def _send(entries: Entries[Any], operations: Iterator[Operation]) -> _Sent:
    """Send operations. Raises an error that a repeat may cure, with the number of rows that are written by then."""
    outcome, unanswered = _Sent(), deque[Operation]()

    def noted() -> Iterator[Operation]:
        for operation in operations:
            unanswered.append(operation)
            yield operation

    for result in entries.bulk(noted()):
        operation = unanswered.popleft()
        is_absent = isinstance(result, EntryMissing) and operation.kind == "delete"
        if not isinstance(result, CompactoryError) or is_absent:
            outcome.written += 1
            continue
        if result.retryable:
            log.warning("%d rows of this task were written before the server failed: %s", outcome.written, result)
            raise result
        outcome.refused += 1
        if len(outcome.reasons) < _EXAMPLES:
            outcome.reasons.append(f"{(operation.key or 'a row')[:_LONGEST]}: {' '.join(str(result).split())}")
    return outcome


def entry_writer(options: Mapping[str, str], schema: t.StructType, overwrite: bool) -> EntryWriter:
    """Check the options and the columns. Raises ConfigError with every problem."""
    by_name = {name.lower(): value for name, value in options.items()}
    problems = write_problems(options, _OPTIONS, ("timeout",), overwrite)
    problems += [f"option {name} is missing" for name in ("directory", "url") if not by_name.get(name)]
    ignore_nulls = by_name.get("ignorenullfields", "true")
    if ignore_nulls not in ("true", "false"):
        problems.append("option ignoreNullFields must be true or false")
    try:
        rows = JsonRows.of(schema, keeps_nulls=ignore_nulls == "false")
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    client: dict[str, Any] = {name: by_name[name] for name in ("url", "token") if name in by_name}
    client["timeout"] = float(by_name.get("timeout", 60))
    Client(**client).close()
    return EntryWriter(by_name["directory"], client, rows, by_name.get("loadid"))
