"""A topic beside its table, while both change: no false alarm, and every true difference."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer

from compactory_connectors.source.planning import plan_tables
from compactory_connectors.source.server import Server
from compactory_connectors.source.verification.judgement import Finding
from compactory_connectors.source.verification.outcome import Outcome
from compactory_connectors.source.verification.verifier import Options, Verifier
from tests.source.conftest import Bench


@pytest.fixture
def bench(database: str, kafka: str, unique: Callable[[str], str]) -> Iterator[Bench]:
    bench = Bench(database, kafka, f"{unique('v')}.")
    yield bench
    bench.close()


def verified(bench: Bench, *, wait: float = 10.0, digests: bool = False, **changes: Any) -> Outcome:
    """Compare the bench's table and topic."""
    connector = bench.connector(**changes)
    server = Server.open(connector.connection.conninfo)
    try:
        plans = plan_tables(server, connector)
        options = Options(wait=wait, digests=digests)
        return Verifier(connector, bench.kafka, server, plans, options).run(bench.topic)
    finally:
        server.close()


def send(bench: Bench, key: bytes, value: bytes | None, **places: Any) -> None:
    """A record by somebody else."""
    producer = Producer({**bench.kafka.properties(), "partitioner": "murmur2_random"})
    producer.produce(bench.topic, value, key, **places)
    assert producer.flush(10) == 0


def test_equal(bench: Bench) -> None:
    bench.add("T1", "T2", "T3")
    bench.once()
    found = verified(bench)
    assert found.equal, found
    assert (found.expected, found.stored) == (3, 3)


def test_every_kind_of_difference(bench: Bench) -> None:
    bench.add("T1", "T2", "T3", "T4")
    bench.once()
    for number, value in ((b"1", b'{"forged":true}'), (b"2", None), (b"77", b'{"ghost":1}')):
        send(bench, number, value)
    bench.sql.execute("ALTER TABLE terminal_acquirer DISABLE TRIGGER USER")
    bench.once()
    found = verified(bench, digests=True)
    kinds = {each.key: each.finding for each in found.differences}
    assert kinds == {b"1": Finding.DIFFERENT, b"2": Finding.MISSING, b"77": Finding.EXTRA}
    assert found.different == 3
    assert not found.open
    forged = next(each for each in found.differences if each.key == b"1")
    assert forged.found is not None
    assert forged.found.value == b'{"forged":true}'
    assert forged.expected is not None
    assert b'"terminalId":"T1"' in forged.expected
    assert found.digests is not None
    assert found.digests.table.total.count == 4
    assert found.digests.table.differing(found.digests.topic)


def test_a_key_in_two_partitions_of_which_the_old_copy_is_newer(bench: Bench) -> None:
    bench.kafka.create_topic(bench.topic, partitions=2, config={"cleanup.policy": "compact"})
    bench.add("T1", "T2")
    bench.once()
    for partition in (0, 1):
        send(bench, b"1", b"{}", partition=partition, timestamp=int(time.time() * 1000) + 60_000)
        send(bench, b"2", b"{}", partition=partition, timestamp=1000)
    bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B'")
    bench.once()
    found = verified(bench)
    assert [(each.key, each.finding, each.partitions) for each in found.differences] == [
        (b"1", Finding.DIFFERENT, (0, 1))
    ]
    assert found.doubled == 2


def test_what_was_not_polled_is_pending_while_no_source_runs(bench: Bench) -> None:
    bench.add("T1", "T2", "T3")
    bench.once(soft_delete=True)
    send(bench, b"3", b"{}")
    bench.add("T4")
    bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 1")
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id = 2")
    found = verified(bench, soft_delete=True)
    assert found.findings == {Finding.PENDING: 3, Finding.DIFFERENT: 1}
    assert not found.sources
    assert [each.key for each in found.differences] == [b"3"]


def test_a_deactivation_that_was_lost(bench: Bench) -> None:
    bench.add("T1", "T2", "T3")
    bench.once(soft_delete=True)
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id < 3")
    bench.once(soft_delete=True)
    send(bench, b"1", b'{"back":"again"}')
    found = verified(bench, soft_delete=True)
    assert [(each.key, each.finding) for each in found.differences] == [(b"1", Finding.EXTRA)]


def test_before_any_source_ran_all_is_pending(bench: Bench) -> None:
    bench.kafka.create_topic(bench.topic, partitions=1, config={"cleanup.policy": "compact"})
    bench.add("T1", "T2")
    send(bench, b"9", b"{}")
    found = verified(bench)
    assert found.findings == {Finding.PENDING: 3}
    assert not found.polled


class Load:
    """Commits one row after the other, about ``rate`` a second, until its block ends."""

    def __init__(self, url: str, statements: list[str], rate: int = 1000) -> None:
        self.commits = 0
        self._url, self._statements, self._rate = url, statements, rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        with psycopg.connect(self._url, autocommit=True) as sql:
            while not self._stop.is_set():
                sql.execute(self._statements[self.commits % len(self._statements)])
                self.commits += 1
                self._stop.wait(max(0.0, began + self.commits / self._rate - time.monotonic()))


WRITES = [
    "UPDATE terminal_acquirer SET acquirer_id = clock_timestamp()::text WHERE id = 1 + floor(random() * 2000)",
    "UPDATE terminal_acquirer SET is_active = NOT is_active WHERE id = 1 + floor(random() * 2000)",
    "UPDATE terminal_acquirer SET acquirer_id = clock_timestamp()::text WHERE id = 1 + floor(random() * 20)",
    "INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('N', clock_timestamp()::text)",
]


def test_no_false_alarm_and_every_true_one_under_load(bench: Bench) -> None:
    bench.sql.execute(
        "INSERT INTO terminal_acquirer (terminal_id, acquirer_id) SELECT 'T' || n, 'A' FROM generate_series(1, 20000) n"
    )
    running = bench.start(soft_delete=True)
    bench.wait_for_records(20_000)
    with Load(bench.url, WRITES) as load:
        for _ in range(3):
            found = verified(bench, soft_delete=True, wait=20)
            assert found.equal, (found, load.commits)
            assert found.sources
        send(bench, b"15000", b"{}")
        send(bench, b"15001", None)
        send(bench, b"ghost", b"{}")
        found = verified(bench, soft_delete=True, wait=20)
    assert {each.key for each in found.differences} == {b"15000", b"15001", b"ghost"}, found
    assert not found.open
    running.stop()
