"""Every row of a table compared with its topic: what a move from Kafka Connect would send and remove."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compactory.errors import CompactoryError
from compactory.kafka.client import Kafka
from compactory_connectors.connect.record.record import RowError

from ..planning.table_plan import TablePlan
from ..polling.reader import Reader
from ..polling.readers import open_reader
from ..polling.record_batch import RecordBatch
from ..polling.removal import too_many
from ..postgres.server import Server
from ..verify.comparison import Comparison
from ..verify.key_ranges import living_keys

__all__ = ["Difference", "difference"]

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


def difference(server: Server, kafka: Kafka, plan: TablePlan, percent: int) -> Difference:
    """Compare every row with the topic, of which ``percent`` may be removed at once.

    Raises psycopg.Error, Unreachable, CompactoryError.
    """
    there = plan.topic in kafka.topics([plan.topic])
    comparison = Comparison.with_topic(kafka, plan.topic) if there else Comparison()
    living = comparison.living()
    reader = open_reader(server, plan, None)
    lacking = 0
    examples: list[tuple[bytes | None, bytes | None]] = []
    for batch in _batches(reader, comparison):
        lacking += len(batch.records)
        # of deactivated and deleted rows the table has said what becomes of them
        living.difference_update(hash(record[0]) for record in batch.records if record[1] is None)
        examples += [(record[0], record[1]) for record in batch.records[: _EXAMPLES - len(examples)]]
    keys = (hash(key) for keys in living_keys(server, plan) for key in keys)
    gone = living.difference(keys) if plan.sweeps else set[int]()
    return Difference(
        same=comparison.left_out,
        lacking=lacking,
        removed=len(gone),
        held=too_many(len(gone), len(living), percent),
        examples=tuple(examples),
    )


def _batches(reader: Reader, comparison: Comparison) -> Iterator[RecordBatch]:
    try:
        for batch in reader.batches(expect=comparison.expect):
            yield comparison.without_known(batch, reader.plan)
    except RowError as error:
        raise CompactoryError(f"{reader.plan.label}: {error}") from error
