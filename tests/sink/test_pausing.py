"""A paused sink in running processes, and the operator log of sinks."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from compactory.errors import ConfigError
from compactory.records import Partition
from compactory_connectors.postgres.operator_log import operator_log
from compactory_connectors.sink import Records, TransactionalSink
from compactory_connectors.sink.operators import drop, pause, resume, retry, set_position
from compactory_connectors.sink.status import SinkWorker
from tests.sink.harness import Bench
from tests.source.workload import wait_until


def shows(sink: TransactionalSink, name: str | None) -> bool:
    """Return True if status and metrics have exactly this pause, and the probes are good."""
    worker = SinkWorker(sink)
    samples = next(metric.samples for metric in worker.metrics() if metric.name == "compactory_paused")
    paused = [] if name is None else [{"part": "sink", "name": name}]
    is_shown = worker.status()["paused"] == paused and samples == {tuple(item.values()): 1.0 for item in paused}
    return is_shown and worker.live() and worker.ready()


def applied(bench: Bench) -> int:
    return sum(bench.applied().values())


def test_two_processes_obey_within_a_second_and_continue_where_they_stopped(bench: Bench) -> None:
    """Both keep their partitions; one that starts meanwhile joins and applies nothing. Each record is applied once."""
    topic = bench.topic(partitions=4)
    keys = [f"k{number % 50}" for number in range(4000)]
    options = {"batch": 5, "properties": {"session.timeout.ms": 6000}}
    sinks = [bench.sink(topic, **options) for _ in range(2)]
    wait_until(lambda: all(len(sink.board.positions) == 2 for sink in sinks), what="two partitions in both")
    bench.produce(topic, [(key, "v") for key in keys])
    wait_until(lambda: applied(bench) > 20, what="the first records")
    begun_at = time.monotonic()
    assert pause(bench.sql, bench.name).has_changed
    wait_until(lambda: all(shows(sink, bench.name) for sink in sinks), 1.0, "the pause in both")
    assert time.monotonic() - begun_at < 1.0
    records, rebalances = applied(bench), [sink.board.rebalances for sink in sinks]
    assert records < len(keys)
    later = bench.sink(topic, **options)
    wait_until(lambda: shows(later, bench.name), what="the pause in a new process")
    polled_at = [sink.board.polled_at for sink in sinks]
    wait_until(lambda: all(sink.board.polled_at > at for sink, at in zip(sinks, polled_at, strict=True)), what="polls")
    assert applied(bench) == records
    assert [sink.board.rebalances for sink in sinks] == rebalances
    assert not pause(bench.sql, bench.name).has_changed
    assert resume(bench.sql, bench.name)
    wait_until(lambda: all(shows(sink, None) for sink in (*sinks, later)), 1.0, "the resume")
    bench.wait_for_end(topic)
    bench.compare(Counter(keys))
    assert not resume(bench.sql, bench.name)


def test_a_name_that_no_sink_has_is_refused(bench: Bench) -> None:
    for act in (pause, resume):
        with pytest.raises(ConfigError, match="no sink 'nobody' has written to this database"):
            act(bench.sql, "nobody")


def test_each_act_leaves_a_line_in_its_transaction(bench: Bench) -> None:
    topic = bench.topic()

    def refuse(_connection: Any, records: Records) -> None:
        for record in records:
            if not records.waits(record) and record.value == b"bad":
                records.set_aside(record, "no")

    bench.produce(topic, [("a", "bad"), ("a", "waits"), ("b", "bad")])
    sink = bench.sink(topic, refuse)
    bench.wait_for_end(topic)
    assert sink.stop()
    with bench.sql.transaction(force_rollback=True):
        drop(bench.sql, bench.name)
    assert retry(bench.sql, bench.name, by="alice") == 3
    assert drop(bench.sql, bench.name, topic, 0, 2) == 1
    assert drop(bench.sql, bench.name, topic, 0, 99) == 0
    assert set_position(bench.sql, bench.kafka, bench.name, Partition(topic, 0), "1") == 1
    pause(bench.sql, bench.name)
    pause(bench.sql, bench.name)
    resume(bench.sql, bench.name)
    place = {"sink": bench.name, "topic": topic, "partition": 0}
    lines = [(line.action, line.object, line.count) for line in reversed(operator_log(bench.sql, "sink"))]
    assert lines == [
        ("retry", place, 3),
        ("drop", place | {"offset": 2}, 1),
        ("set-offset", place | {"offset": 1}, 1),
        ("pause", {"sink": bench.name}, 1),
        ("resume", {"sink": bench.name}, 1),
    ]
    role = f"({bench.sql.info.user}@{bench.sql.info.dbname})"
    assert operator_log(bench.sql)[-1].who == f"alice {role}"
