"""A sink works with just the rights of ``sql roles --for sink``, and says which one is missing; its probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

from compactory.errors import ConfigError
from compactory.records import Partition
from compactory_connectors.schema import grant, plan_sink_grants
from compactory_connectors.sink.status import Board, SinkWorker
from tests.sink.harness import Bench
from tests.source.workload import wait_until


@pytest.fixture
def role(bench: Bench, unique: Callable[[str], str]) -> Iterator[str]:
    """URL of a sink's role."""
    name = unique("sinkrole")
    for _ in range(2):  # running it again changes nothing
        grant(bench.sql, plan_sink_grants(bench.sql, name, ["counters", "effects"]))
    place = urlsplit(bench.url)
    yield f"postgresql://{name}@{place.hostname}:{place.port}{place.path}"
    bench.sql.execute(f'DROP OWNED BY "{name}"; DROP ROLE "{name}"')


def test_a_sink_needs_no_more(bench: Bench, role: str) -> None:
    topic = bench.topic()
    bench.produce(topic, [("k", "1")])
    own, bench.url = bench.url, role
    sink = bench.sink(topic)
    bench.wait_for_values("1")
    assert sink.stop()
    bench.url = own
    with psycopg.connect(role, autocommit=True) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("DELETE FROM compactory.kafka_partitions")


def test_one_right_less_and_it_is_named(bench: Bench, role: str) -> None:
    topic = bench.topic()
    bench.sql.execute(f'REVOKE UPDATE ON compactory.kafka_partitions FROM "{urlsplit(role).username}"')
    own, bench.url = bench.url, role
    try:
        with pytest.raises(ConfigError, match=r"GRANT UPDATE ON TABLE compactory.kafka_partitions TO"):
            bench.sink(topic)
    finally:
        bench.url = own


@pytest.mark.parametrize(
    ("change", "back", "told"),
    [
        ("NOLOGIN", "LOGIN", "not permitted to log in"),
        ("SET default_transaction_read_only = on", "RESET ALL", "read-only transaction"),
    ],
)
def test_a_refusal_while_it_runs_is_waited_for(bench: Bench, role: str, change: str, back: str, told: str) -> None:
    """Guarantee 12: as relays and executors wait, for a new password or a failover."""
    topic, name = bench.topic(), urlsplit(role).username
    own, bench.url = bench.url, role
    sink = bench.sink(topic)
    bench.url = own
    bench.produce(topic, [("k", "1")])
    bench.wait_for_values("1")
    bench.sql.execute(f'ALTER ROLE "{name}" {change}')
    bench.sql.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [name])
    bench.produce(topic, [("k", "2")])
    wait_until(lambda: told in (sink.board.detail or ""), what="the reason")
    assert sink.alive
    bench.sql.execute(f'ALTER ROLE "{name}" {back}')
    bench.wait_for_values("1", "2")
    assert sink.stop()


def test_a_table_with_a_policy_for_its_role_is_written(bench: Bench, role: str) -> None:
    topic = bench.topic()
    for table in ("counters", "effects"):
        bench.sql.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON {table} USING (true)")
    bench.produce(topic, [("k", "1")])
    own, bench.url = bench.url, role
    sink = bench.sink(topic)
    bench.url = own
    bench.wait_for_values("1")
    assert sink.stop()


def test_a_batch_that_hangs_or_a_poll_that_does_not_come_is_not_live() -> None:
    board = Board()
    assert board.live(polling_ttl=300, consuming_ttl=60)
    assert not board.live(polling_ttl=0, consuming_ttl=60)
    with board.consuming(Partition("t", 0)):
        assert board.live(polling_ttl=0, consuming_ttl=60)
        assert not board.live(polling_ttl=300, consuming_ttl=0)


def test_what_a_sink_shows(bench: Bench) -> None:
    topic = bench.topic()
    bench.produce(topic, [("k", "1"), ("k", "2")])
    sink = bench.sink(topic)
    worker = SinkWorker(sink)
    bench.wait_for_values("1", "2")
    wait_until(lambda: worker.ready() and worker.status()["partitions"], what="the sample")
    wait_until(lambda: worker.status()["partitions"][0]["offset"] == 2, what="the position")
    assert worker.live()
    figures = {metric.name: metric.samples for metric in worker.metrics()}
    assert figures["compactory_sink_rows_total"] == {(bench.name, topic, "0"): 2.0}
    assert figures["compactory_sink_lag"] == {(bench.name, topic, "0"): 0.0}
