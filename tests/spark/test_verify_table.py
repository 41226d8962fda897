"""A table beside its topic on Spark: the verdicts of the one-threaded comparison, whose tests are run again with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compactory import Directory, GlobalStore
from compactory.errors import CompactoryError
from compactory_api.protocol.access import Access
from compactory_cli.context.remote import Server
from compactory_connectors.source.config.connector import ConnectorConfig
from compactory_connectors.source.reconcile.checker import Finding
from compactory_connectors.source.reconcile.outcome import Outcome
from compactory_connectors.source.reconcile.verification import verify
from compactory_connectors.source.reconcile.verifier import Options
from compactory_connectors.source.run.source import Source
from compactory_connectors.spark.export.job import ExportOptions, export
from compactory_connectors.spark.failures import spark_failures
from compactory_connectors.spark.verification import table_rows
from compactory_connectors.spark.verification.export_side import compare_export
from compactory_connectors.spark.verification.store_side import compare_store
from compactory_connectors.spark.verification.table_pass import TablePass
from compactory_connectors.spark.verification.topic_states import TopicStates
from tests.api.serving import Serving
from tests.source.conftest import Bench
from tests.source.reconcile import test_verification as cases

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


@pytest.mark.proof
def test_a_million_keys_on_all_sides(spark: SparkSession, bench: Bench, tmp_path: Path) -> None:
    """Table, topic, store and export of a million keys, of which five differ in the topic: exactly these are named."""
    bench.sql.execute(
        "INSERT INTO terminal_acquirer (terminal_id, acquirer_id)"
        " SELECT 'T' || n, 'A' FROM generate_series(1, 1000000) n"
    )
    bench.once(patience=300)
    connector, kafka = bench.connector(), bench.kafka
    serving = Serving(GlobalStore(kafka.properties(), [bench.topic]), Access())
    took: dict[str, float] = {}

    def timed(name: str, compare: Callable[[], Any]) -> Any:
        began = time.monotonic()
        found = compare()
        took[name] = round(time.monotonic() - began, 1)
        return found

    try:
        serving.wait_ready()
        server = Server(f"http://127.0.0.1:{serving.port}", timeout=300)
        options = ExportOptions()
        timed("export", lambda: export(spark, kafka, Directory(bench.topic), str(tmp_path / "e"), options))
        cases.send(bench, b"ghost", b"{}")
        for number in (b"7", b"70000", b"700000", b"999999"):
            cases.send(bench, number, b'{"forged":true}')
        table = timed("table", lambda: on_spark(spark, bench, connector, bench.topic, 60))
        plain = timed("table, one thread", lambda: cases.compared(bench, connector, bench.topic, digests=True))
        with TopicStates(spark, kafka, bench.topic) as states:
            serving.store.barrier(30)
            store = timed("store", lambda: compare_store(states, server, bench.topic))
            files = timed("files", lambda: compare_export(states, kafka, str(tmp_path / "e")))
    finally:
        serving.stop()
    print(took)
    assert {each.key for each in table.differences} == {b"ghost", b"7", b"70000", b"700000", b"999999"}
    assert (table.expected, table.stored, table.different) == (1_000_000, 1_000_001, 5)
    assert (plain.different, plain.digests) == (table.different, table.digests)
    assert (store.equal, store.stored, store.behind, store.ranges) == (True, 1_000_001, 0, 0)
    assert (files.equal, files.stored, files.behind) == (True, 1_000_000, 5)
