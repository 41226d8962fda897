"""Table, topic, store and export beside each other, at a size where Spark has several tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compactory import Directory, GlobalStore
from compactory_api.http.access import Access
from compactory_cli.context.remote import RemoteServer
from compactory_connectors.spark.export.job import ExportOptions, export
from compactory_connectors.spark.verification.export_side import compare_export
from compactory_connectors.spark.verification.store_side import compare_store
from compactory_connectors.spark.verification.topic_states import TopicStates
from tests.api.serving import Serving
from tests.source.conftest import Bench
from tests.source.verify import test_verification as cases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def bench(database: str, kafka: str, unique: Callable[[str], str]) -> Iterator[Bench]:
    bench = Bench(database, kafka, f"{unique('vs')}.")
    yield bench
    bench.close()


@pytest.mark.proof
def test_a_million_keys_on_all_sides(spark: SparkSession, bench: Bench, tmp_path: Path) -> None:
    """Table, topic, store and export of a million keys, of which five differ in the topic: exactly these are named."""
    bench.sql.execute(
        "INSERT INTO terminal_acquirer (terminal_id, acquirer_id)"
        " SELECT 'T' || n, 'A' FROM generate_series(1, 1000000) n"
    )
    bench.once(timeout=300)
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
        server = RemoteServer(f"http://127.0.0.1:{serving.port}", timeout=300)
        options = ExportOptions()
        timed("export", lambda: export(spark, kafka, Directory(bench.topic), str(tmp_path / "e"), options))
        cases.send(bench, b"ghost", b"{}")
        for number in (b"7", b"70000", b"700000", b"999999"):
            cases.send(bench, number, b'{"forged":true}')
        table = timed("table", lambda: cases.compared(bench, connector, bench.topic, digests=True))
        with TopicStates(spark, kafka, bench.topic) as states:
            serving.store.barrier(30)
            store = timed("store", lambda: compare_store(states, server, bench.topic))
            files = timed("files", lambda: compare_export(states, kafka, str(tmp_path / "e")))
    finally:
        serving.stop()
    print(took)
    assert {each.key for each in table.differences} == {b"ghost", b"7", b"70000", b"700000", b"999999"}
    assert (table.expected, table.stored, table.different) == (1_000_000, 1_000_001, 5)
    assert table.digests is not None
    assert (store.equal, store.stored, store.behind, store.ranges) == (True, 1_000_001, 0, 0)
    assert (files.equal, files.stored, files.behind) == (True, 1_000_000, 5)
