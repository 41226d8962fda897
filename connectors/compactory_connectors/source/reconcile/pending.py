"""What the next poll of a table would send: counted, and for a move from Kafka Connect compared with the topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from compactory.errors import CompactoryError
from compactory.kafka.client import Kafka

from ..control.removal import too_many
from ..cursor.offset import SourceOffset
from ..plan.table_plan import TablePlan
from ..poll.comparison import Comparison
from ..poll.readers import COMPARING, open_reader
from ..poll.record_batch import Reader, Record, RecordBatch
from ..postgres.server import Server
from ..publish.topics import read
from ..record.record import RowError

__all__ = ["Difference", "difference", "pending_rows"]

_EXAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How a table and its topic differ. ``same`` rows are left out, ``lacking`` records are sent.

    ``removed`` keys are in the topic alone; ``held`` says that so many are not removed without an operator.
    """

    same: int
    lacking: int
    removed: int
    held: bool
    examples: tuple[tuple[bytes | None, bytes | None], ...]


def pending_rows(server: Server, plan: TablePlan, offset: SourceOffset | None) -> int:
    """Rows that a poll would take now. Raises psycopg.Error and TableReplaced."""
    return open_reader(server, plan, offset).count()


def difference(server: Server, kafka: Kafka, plan: TablePlan, percent: int) -> Difference:
    """Compare every row with the topic, of which ``percent`` may be removed at once.

    Raises psycopg.Error, Unreachable, CompactoryError.
    """
    comparison = Comparison()
    if plan.topic in kafka.topics([plan.topic]):
        comparison = Comparison.of(read(kafka, plan.topic))
    living = comparison.living()
    reader = open_reader(server, plan, None)
    assert isinstance(reader, COMPARING)
    reader.comparison = comparison
    lacking = 0
    examples: list[tuple[bytes | None, bytes | None]] = []
    for batch in _batches(reader):
        lacking += len(batch.records)
        living -= _deleted(batch.records)
        examples += [(record[0], record[1]) for record in batch.records[: _EXAMPLES - len(examples)]]
    gone = living.difference(_table_keys(reader)) if plan.sweeps else set[bytes]()
    return Difference(
        same=comparison.left_out,
        lacking=lacking,
        removed=len(gone),
        held=too_many(len(gone), len(living), percent),
        examples=tuple(examples),
    )


def _deleted(records: Iterable[Record]) -> set[bytes]:
    """Keys of tombstones: the table has said what became of them."""
    return {record[0] for record in records if record[0] is not None and record[1] is None}


def _table_keys(reader: Reader) -> Iterator[bytes]:
    render_key = reader.plan.rows.render_key
    keys = (render_key(row) for rows in reader.living_rows() for row in rows)
    return (key for key in keys if key is not None)


def _batches(reader: Reader) -> Iterator[RecordBatch]:
    try:
        yield from reader.pages()
    except RowError as error:
        raise CompactoryError(f"{reader.plan.label}: {error}") from error
