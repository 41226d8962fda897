"""``df.write.format("compactory")`` into a directory mastered in Kafka: its server writes the rows.

One process at a time writes such a directory. A producer of the job would fence that process, and be fenced by its next
write. So tasks send their rows to the server as any client does, and each row is checked as a PUT is.
Spark calls `write` and `commit` in processes of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final

import orjson
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from compactory.errors import CompactoryError, ConfigError, EntryMissing, Unreachable, WriteRefused
from compactory.write.operation import Operation
from compactory_client import Client, Entries, WriteResult

from ..typed.json_objects import JsonRow, JsonRows
from .options import write_problems
from .rows_to_write import raw_json_rows, rows_to_write

__all__ = ["EntryWriter", "entry_writer"]

_OPTIONS: Final = ("directory", "url", "token", "timeout", "loadId", "raw", "ignoreNullFields")
_EXAMPLES: Final = 5
"""Refused rows that the error names, with their keys."""
_LONGEST: Final = 80


@dataclass
class _Sent(WriterCommitMessage):
    """The outcome of a task's rows. ``reasons`` are those of the first refused rows.

    ``failure``: why the server failed before the task's last row; empty: it did not.
    """

    written: int = 0
    refused: int = 0
    reasons: list[str] = field(default_factory=list)
    failure: str = ""


@dataclass(frozen=True)
class EntryWriter(DataSourceArrowWriter):
    """Writes the rows of a DataFrame as entries. Made by :func:`entry_writer`.

    ``client`` are the arguments of the client, with the token: never log them. A row that is sent again under the same
    ``load_id`` is written once. ``rows`` None: the columns ``key`` and ``value`` are JSON as it is sent.
    """

    directory: str
    client: Mapping[str, Any] = field(repr=False)
    rows: JsonRows | None
    load_id: str | None

    def of_load(self, load_id: str) -> EntryWriter:
        """Return a writer that writes under this id."""
        return replace(self, load_id=load_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition, until the server fails; `commit` tells how many rows are written and refused.

        Raises WriteRefused for a row that can't be sent; others may be written by then.
        """
        rows = self.rows.rows(iterator) if self.rows is not None else raw_json_rows(iterator)
        with Client(**self.client) as client:
            return _send(client.directory(self.directory), map(self._operation, rows))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Raise Unreachable if the server failed, WriteRefused if it refused rows; the other rows are written."""
        outcomes = [message for message in messages if isinstance(message, _Sent)]
        refused = sum(outcome.refused for outcome in outcomes)
        written = sum(outcome.written for outcome in outcomes)
        if failed := next((outcome for outcome in outcomes if outcome.failure), None):
            raise Unreachable(
                "the server",
                f"directory {self.directory!r}: {written:,} rows are written, and others may not be: {failed.failure};"
                " write again: under the same load id no row is written twice",
            )
        if refused:
            reasons = "; ".join([reason for outcome in outcomes for reason in outcome.reasons][:_EXAMPLES])
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
    """Send operations, and no more once one fails with an error that a repeat may cure."""
    outcome, unanswered = _Sent(), deque[Operation]()

    def noted() -> Iterator[Operation]:
        for operation in operations:
            if outcome.failure:
                return
            unanswered.append(operation)
            yield operation

    for result in _results(entries.bulk(noted())):
        operation = unanswered.popleft()
        is_absent = isinstance(result, EntryMissing) and operation.kind == "delete"
        if not isinstance(result, CompactoryError) or is_absent:
            outcome.written += 1
            continue
        if result.retryable:
            outcome.failure = outcome.failure or " ".join(str(result).split())
            continue
        outcome.refused += 1
        if len(outcome.reasons) < _EXAMPLES:
            outcome.reasons.append(f"{(operation.key or 'a row')[:_LONGEST]}: {' '.join(str(result).split())}")
    return outcome


def _results(
    results: Iterator[WriteResult | CompactoryError],
) -> Iterator[WriteResult | CompactoryError]:
    """Yield the results, and in place of raising an error that a repeat may cure that error."""
    try:
        yield from results
    except CompactoryError as error:
        if not error.retryable:
            raise
        yield error


def entry_writer(options: Mapping[str, str], schema: t.StructType, overwrite: bool) -> EntryWriter:
    """Check the options and the columns. Raises ConfigError with every problem."""
    by_name = {name.lower(): value for name, value in options.items()}
    problems = write_problems(options, _OPTIONS, ("timeout",), overwrite)
    problems += [f"option {name} is missing" for name in ("directory", "url") if not by_name.get(name)]
    rows, row_problems = rows_to_write(by_name, schema)
    if problems := [*problems, *row_problems]:
        raise ConfigError(problems)
    client: dict[str, Any] = {name: by_name[name] for name in ("url", "token") if name in by_name}
    client["timeout"] = float(by_name.get("timeout", 60))
    Client(**client).close()
    return EntryWriter(by_name["directory"], client, rows, by_name.get("loadid"))
