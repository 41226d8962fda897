"""A table beside its topic on Spark: the verdicts of the one-threaded comparison, whose tests are run again with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from compactory.errors import CompactoryError
from compactory_connectors.source.connector import ConnectorConfig
from compactory_connectors.source.source import Source
from compactory_connectors.source.verification.judgement import Finding
from compactory_connectors.source.verification.outcome import Outcome
from compactory_connectors.source.verification.verification import verify
from compactory_connectors.source.verification.verifier import Options
from compactory_connectors.spark import table_rows
from compactory_connectors.spark.failures import spark_failures
from compactory_connectors.spark.table_pass import TablePass
from tests.source import test_verification as cases
from tests.source.conftest import Bench

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Case = Callable[[Bench], None]
_READER = table_rows._reader


@pytest.fixture
def bench(database: str, kafka: str, unique: Callable[[str], str]) -> Iterator[Bench]:
    bench = Bench(database, kafka, f"{unique('vs')}.")
    yield bench
    bench.close()


def on_spark(spark: SparkSession, bench: Bench, connector: ConnectorConfig, topic: str, wait: float = 10.0) -> Outcome:
    overall = TablePass(spark, connector, bench.kafka)
    [found] = verify(connector, bench.kafka, Options(wait=wait), topic=topic, overall=overall)
    return found


SHORT = [cases.test_every_kind_of_difference, cases.test_deletions_of_an_adopted_table, cases.test_a_partitioned_table]
LONG = [
    cases.test_what_was_not_polled_is_pending_while_no_source_runs,
    cases.test_before_any_source_ran_all_is_pending,
    cases.test_values_that_postgres_writes_itself_are_the_converters,
    cases.test_a_row_that_a_cursor_misses,
    cases.test_a_row_that_can_not_be_converted,
]


@pytest.mark.parametrize(
    "case",
    [*SHORT, *(pytest.param(case, marks=pytest.mark.proof) for case in LONG)],
    ids=lambda case: case.__name__.removeprefix("test_"),
)
def test_the_cases_of_one_thread(
    spark: SparkSession, bench: Bench, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    def compared(
        bench: Bench, connector: ConnectorConfig, topic: str, *, wait: float = 10.0, digests: bool = False
    ) -> Outcome:
        return on_spark(spark, bench, connector, topic, wait)

    monkeypatch.setattr(cases, "compared", compared)
    case(bench)


def test_tasks_read_one_snapshot_while_rows_are_written(
    spark: SparkSession, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many stretches of a file, rows that move between them all the time, and a source at work."""
    monkeypatch.setattr(table_rows, "_LEAST_BLOCKS", 8)
    bench.sql.execute(
        "INSERT INTO terminal_acquirer (terminal_id, acquirer_id) SELECT 'T' || n, 'A' FROM generate_series(1, 4000) n"
    )
    running = bench.start(soft_delete=True)
    bench.wait_for_records(4000)
    connector = bench.connector(soft_delete=True)
    with cases.Load(bench.url, cases.WRITES[:2], rate=300):
        found = on_spark(spark, bench, connector, bench.topic, wait=30)
        assert found.equal, found
        assert found.sources
        cases.send(bench, b"3900", b"{}")
        cases.send(bench, b"ghost", b"{}")
        found = on_spark(spark, bench, connector, bench.topic, wait=30)
    running.stop()
    assert {each.key: each.finding for each in found.differences} == {
        b"3900": Finding.DIFFERENT, b"ghost": Finding.EXTRA,
    }  # fmt: skip
    plain = cases.compared(bench, connector, bench.topic, digests=True)
    again = on_spark(spark, bench, connector, bench.topic)
    assert plain.digests is not None
    assert again.digests is not None
    assert plain.digests.table.ranges == again.digests.table.ranges
    assert plain.digests.topic.ranges == again.digests.topic.ranges
    assert (plain.expected, plain.stored, plain.findings) == (again.expected, again.stored, again.findings)


def test_stretches_of_a_file() -> None:
    """Without a gap; the last one has no end, so that blocks that come meanwhile are in it."""
    assert table_rows._stretches(0, 4) == [table_rows.Pages(0, None)]
    assert table_rows._stretches(1024, 4) == [table_rows.Pages(0, None)]
    assert table_rows._stretches(5000, 4) == [
        table_rows.Pages(0, 1250), table_rows.Pages(1250, 2500), table_rows.Pages(2500, 3750),
        table_rows.Pages(3750, None),
    ]  # fmt: skip


def test_a_task_that_can_not_read_says_why(spark: SparkSession, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot has gone with its session, as for a task that is run again too late."""
    bench.add("T1")
    Source(bench.connector(), bench.kafka).run(threading.Event(), once=True, patience=20)
    monkeypatch.setattr(table_rows, "_reader", lambda share: _READER(replace(share, snapshot="00000000-00000001-1")))
    with pytest.raises(CompactoryError, match="snapshot"), spark_failures():
        on_spark(spark, bench, bench.connector(), bench.topic)
