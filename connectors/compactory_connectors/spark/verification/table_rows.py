"""The rows of a table as the records they should be, made in tasks that all read by one snapshot.

The session that looks at the table exports its snapshot; each task connects by itself, takes it over, and reads a
stretch of the table's file. Snapshots live as long as the session's transaction: rows are kept before it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from psycopg import sql

from compactory.errors import CompactoryError
from compactory.lookup.digest import record_digest
from compactory_connectors.database.postgres_errors import postgres_errors
from compactory_connectors.source.config.connector import ConnectorConfig
from compactory_connectors.source.cursor.offset import SourceOffset
from compactory_connectors.source.plan.planning import plan_tables
from compactory_connectors.source.postgres.server import PollSnapshot, Server, statement
from compactory_connectors.source.reconcile.table_side import Look, Pages

from ..record_batch import Batches, Task, of_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ROWS", "expected_rows"]

ROWS: Final = "key binary, digest binary, flags int, unreadable string"
"""``flags`` as in :class:`Row`; a row of which not even the key is known has only the reason why."""

_SCHEMA: Final = pa.schema(
    [("key", pa.binary()), ("digest", pa.binary()), ("flags", pa.int32()), ("unreadable", pa.string())]
)
_LEAST_BLOCKS: Final = 1024  # of a task: 8 MiB
_TID_RANGES: Final = 140000  # the version of Postgres from which a stretch of a file is read without the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """What tasks have to know. It travels to the executors with the database's login: never log it."""

    connector: ConnectorConfig
    table: str
    oid: int
    topic: str
    offset: SourceOffset | None
    at: PollSnapshot | None
    snapshot: str
    stretches: Sequence[Pages | None]


def expected_rows(spark: SparkSession, connector: ConnectorConfig, look: Look, topic: str) -> DataFrame:
    """The rows of a look, read at once and kept: the columns of :data:`ROWS`.

    Raises psycopg.Error; what a task meets comes as Spark's error.
    """
    plan = look.plan
    row = look.server.connection.execute(statement("verification/blocks", oid=sql.Literal(plan.oid))).fetchone()
    assert row is not None
    splits = plan.kind in "rp" and look.server.connection.info.server_version >= _TID_RANGES
    tasks = 2 * spark.sparkContext.defaultParallelism
    share = _Share(
        connector=connector,
        table=plan.qualified,
        oid=plan.oid,
        topic=topic,
        offset=look.offset,
        at=look.at,
        snapshot=row[1],
        stretches=_stretches(row[0], tasks) if splits else [None],
    )
    numbers = spark.range(0, len(share.stretches), 1, len(share.stretches))
    return numbers.mapInArrow(_reader(share), ROWS).localCheckpoint(eager=True)


def _stretches(blocks: int, tasks: int) -> list[Pages]:
    """Stretches of a file; the last one has no end, so that blocks that came since are in it."""
    size = max(_LEAST_BLOCKS, -(-blocks // tasks))
    starts = range(0, max(blocks, 1), size)
    return [Pages(first, first + size if first + size < blocks else None) for first in starts]


def _reader(share: _Share) -> Task:
    def task(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                with postgres_errors(share.connector.connection):
                    yield from _read(share, share.stretches[number])

    return task


def _read(share: _Share, stretch: Pages | None) -> Batches:
    server = Server.open(share.connector.connection.conninfo)
    try:
        plans = plan_tables(server, share.connector)
        plan = next((plan for plan in plans if (plan.qualified, plan.oid) == (share.table, share.oid)), None)
        if plan is None:
            raise CompactoryError(f"table {share.table} was dropped or replaced while it was compared: run this again")
        server.connection.execute(statement("verification/share", snapshot=sql.Literal(share.snapshot)))
        look = Look(server, plan, share.offset, share.at, stretch)
        for rows in look.records(share.topic):
            found = [(key, record_digest(key, value or b""), flags, None) for key, value, flags, _ in rows]
            yield of_rows(found, _SCHEMA)
        yield of_rows([(None, None, None, why) for why in look.unreadable], _SCHEMA)
    finally:
        server.close()
