"""Heartbeats end to end: renewed in Postgres, published, seen in a store; and where they can't be."""

from __future__ import annotations

import time

import orjson
import psycopg

from compactory import GlobalStore
from compactory.store_worker import HEARTBEATS_TOPIC, StoreWorker, heartbeat_ages
from compactory_connectors.schema import install
from compactory_connectors.source.offsets.stored_offsets import Target
from compactory_connectors.source.runtime.worker import SourceWorker, source_metrics
from compactory_connectors.source.status.status import Moment, SourceState
from tests.source.conftest import Bench
from tests.source.workload import wait_until


def test_an_idle_table_is_told_from_a_source_that_does_nothing(bench: Bench) -> None:
    install(bench.sql)
    bench.add("T1")
    running = bench.start(heartbeat_interval_ms=1000, poll_interval_ms=3_600_000)
    wait_until(lambda: running.source.status().heartbeat, what="a heartbeat")
    with GlobalStore({"bootstrap.servers": bench.kafka.bootstrap}, [HEARTBEATS_TOPIC, bench.topic]) as store:

        def age() -> float | None:
            return heartbeat_ages(store, time.time()).get(bench.prefix)

        beats = orjson.loads(store[HEARTBEATS_TOPIC].raw(bench.prefix))["beats"]
        wait_until(lambda: store[HEARTBEATS_TOPIC][bench.prefix]["beats"] >= beats + 2, 10, "two more beats")
        assert age() is not None
        assert age() < 5  # type: ignore[operator]
        [found] = [m for m in StoreWorker(store).metrics() if m.name == "compactory_store_heartbeat_age_seconds"]
        assert (bench.prefix,) in found.samples
        polls = running.source.status().tables[0].polls_total

        running.source.orders.set_target(Target.PAUSED)
        running.wait_for(SourceState.PAUSED)
        wait_until(lambda: (age() or 0) > 2, 10, "an age of two seconds")
        assert running.source.status().tables[0].polls_total == polls, "its own table was left alone"
    beat = running.source.status().heartbeat
    assert beat is not None
    assert 0 < beat.seconds < 5
    shown = {metric.name: metric for metric in SourceWorker(running.source, lambda: True).metrics()}
    assert shown["compactory_source_heartbeat_timestamp_seconds"].samples == {(bench.prefix,): beat.committed_at}


def test_without_the_table_or_its_rights_the_source_works_and_says_so(bench: Bench) -> None:
    bench.add("T1")
    running = bench.start(heartbeat_interval_ms=1000)
    bench.wait_for_records(1)
    wait_until(lambda: any("no heartbeats" in text for text in running.source.status().warnings), what="the warning")
    bench.add("T2")
    bench.wait_for_records(2)
    status = running.source.status()
    assert (status.state, status.heartbeat) == (SourceState.RUNNING, None)
    assert all(not metric.samples for metric in source_metrics(Moment(status, 0, 0)) if "heartbeat" in metric.name)
    install(bench.sql)
    running.source.orders.restart()
    wait_until(lambda: running.source.status().heartbeat, what="a heartbeat after the restart")


def test_a_row_that_somebody_locks_holds_nothing_up(bench: Bench) -> None:
    install(bench.sql)
    running = bench.start(heartbeat_interval_ms=1000)
    wait_until(lambda: running.source.status().heartbeat, what="a heartbeat")
    with psycopg.connect(bench.url) as locker:
        locker.execute("SELECT FROM compactory.heartbeats FOR UPDATE")
        before = running.source.status().heartbeat
        bench.add("T1")
        bench.wait_for_records(1)
    wait_until(lambda: running.source.status().heartbeat != before, what="a beat after it")
    assert running.source.status().tables[0].errors_total == 0
