"""A topic beside its table, while both change: no false alarm, and every true difference."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer

from compactory.errors import CompactoryError
from compactory.read.digest import RangeDigest, range_of, record_digest
from compactory_connectors.schema import Adoption, adopt
from compactory_connectors.source.config.connector import ConnectorConfig
from compactory_connectors.source.planning.planner import plan_tables
from compactory_connectors.source.postgres.server import Server
from compactory_connectors.source.runtime.source import Source
from compactory_connectors.source.verify.checker import Finding, Outcome
from compactory_connectors.source.verify.verifier import Options, Verifier, verify
from tests.source.conftest import Bench
from tests.source.poller import config, settings


@pytest.fixture
def bench(database: str, kafka: str, unique: Callable[[str], str]) -> Iterator[Bench]:
    bench = Bench(database, kafka, f"{unique('v')}.")
    yield bench
    bench.close()


def verified(bench: Bench, *, wait: float = 10.0, digests: bool = False, **changes: Any) -> Outcome:
    """Compare the bench's table and topic."""
    return compared(bench, bench.connector(**changes), bench.topic, wait=wait, digests=digests)


def compared(
    bench: Bench, connector: ConnectorConfig, topic: str, *, wait: float = 10.0, digests: bool = False
) -> Outcome:
    server = Server.open(connector.connection.conninfo)
    try:
        plans = plan_tables(server, connector)
        options = Options(wait=wait, digests=digests)
        return Verifier(connector, bench.kafka, server, plans, options).run(topic)
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
    found = verified(bench, digests=True)
    assert found.equal, found
    assert (found.expected, found.stored) == (3, 3)
    assert found.digests is not None
    assert not found.digests.table.differing(found.digests.topic)
    for key, value in bench.records():
        assert key is not None
        assert value is not None
        assert found.digests.topic.ranges[range_of(key)].count > 0
    total = RangeDigest.of(record_digest(key or b"", value or b"") for key, value in bench.records())
    assert found.digests.topic.total == total


def test_every_kind_of_difference(bench: Bench) -> None:
    bench.add("T1", "T2", "T3", "T4")
    bench.once()
    for number, value in ((b"1", b'{"forged":true}'), (b"2", None), (b"77", b'{"ghost":1}')):
        send(bench, number, value)
    found = verified(bench, digests=True)
    kinds = {each.key: each.finding for each in found.differences}
    assert kinds == {b"1": Finding.DIFFERENT, b"2": Finding.MISSING, b"77": Finding.EXTRA}
    assert found.different == 3
    assert not found.open
    forged = next(each for each in found.differences if each.key == b"1")
    assert forged.stored is not None
    assert forged.stored.value == b'{"forged":true}'
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


def test_before_any_source_ran_what_the_next_run_sends_is_shown(bench: Bench) -> None:
    """As before a move from Kafka Connect."""
    bench.kafka.create_topic(bench.topic, partitions=1, config={"cleanup.policy": "compact"})
    bench.add("T1", "T2")
    send(bench, b"9", b"{}")
    found = verified(bench)
    assert found.findings == {Finding.MISSING: 2, Finding.EXTRA: 1}
    assert not found.polled


def test_deletions_of_an_adopted_table(bench: Bench) -> None:
    adopt(bench.sql, Adoption(table="terminal_acquirer", key=("terminal_id",)))
    bench.add("T1", "T2", "T3", "T4")
    bench.once()
    bench.sql.execute("DELETE FROM terminal_acquirer WHERE id = 1")
    bench.sql.execute("DELETE FROM terminal_acquirer WHERE id = 2")
    bench.sql.execute("INSERT INTO terminal_acquirer VALUES (20, 'T2', 'A')")
    found = verified(bench)
    assert found.findings == {Finding.PENDING: 3}, found
    bench.once()
    assert verified(bench).equal
    send(bench, b"1", b"{}")
    bench.sql.execute("DELETE FROM terminal_acquirer WHERE id = 3")
    found = verified(bench)
    assert found.findings == {Finding.PENDING: 1, Finding.EXTRA: 1}
    assert [each.key for each in found.differences] == [b"1"]


def test_a_row_that_was_written_behind_the_back_of_its_triggers(bench: Bench) -> None:
    """A stamp that is older than it should be hides a change from every poll; comparing finds it."""
    adopt(bench.sql, Adoption(table="terminal_acquirer", key=("terminal_id",), active="is_active"))
    bench.add("T1", "T2")
    bench.once()
    with psycopg.connect(bench.url) as sql:
        sql.execute("SET session_replication_role = replica")
        sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B', updated_xid = '3' WHERE id = 1")
    bench.once()
    found = verified(bench)
    if not found.equal:  # the triggers fire for replicas as well: then the poll has seen it
        assert [(each.key, each.finding) for each in found.differences] == [(b"1", Finding.DIFFERENT)]


OTHER = """
CREATE TABLE t (id int8 PRIMARY KEY, name text, changed timestamp NOT NULL DEFAULT timezone('utc', clock_timestamp()));
INSERT INTO t SELECT n, 'A' FROM generate_series(1, 5) AS n;
CREATE VIEW v AS SELECT * FROM t WHERE name <> 'hidden';
"""


@pytest.mark.parametrize(
    ("mode", "changes", "changed"),
    [
        ("incrementing", {}, {Finding.PENDING: 1}),
        ("bulk", {}, {Finding.PENDING: 2, Finding.EXTRA: 1}),
        ("timestamp", {"table__whitelist": "v", "table__types": "VIEW"}, {Finding.PENDING: 2, Finding.EXTRA: 1}),
        ("timestamp", {"query": "SELECT * FROM t", "topic__prefix": "Q"}, {Finding.PENDING: 2, Finding.EXTRA: 1}),
    ],
)
def test_other_ways_of_reading(bench: Bench, mode: str, changes: dict[str, str], changed: dict[Finding, int]) -> None:
    """What a mode never sends again is no difference; what it has not sent yet is pending where that can be told."""
    bench.sql.execute(OTHER)
    prefix = bench.topic if "query" in changes else bench.prefix
    connector = config(settings(bench.url, mode, **{**changes, "topic__prefix": prefix}), bench.prefix)
    topic = prefix if "query" in changes else f"{prefix}{changes.get('table__whitelist', 't')}"
    Source(connector, bench.kafka).run(threading.Event(), once=True, timeout=20)
    assert compared(bench, connector, topic).equal
    bench.sql.execute("INSERT INTO t VALUES (6, 'B')")
    bench.sql.execute("UPDATE t SET name = 'B', changed = timezone('utc', clock_timestamp()) WHERE id = 1")
    bench.sql.execute("DELETE FROM t WHERE id = 2")
    found = compared(bench, connector, topic, wait=0)
    assert found.findings == changed, found


def test_values_that_postgres_writes_itself_are_the_converters(bench: Bench) -> None:
    """Escapes, signs beyond two bytes, and rows that only the converters can write."""
    bench.sql.execute(OTHER)
    for number, name in enumerate(["\u00e4\u20ac", "\U0001f600", '"\\\n\t\x01\x1f', "", " x "], 10):
        bench.sql.execute("INSERT INTO t (id, name) VALUES (%s, %s)", [number, name])
    bench.sql.execute(
        "INSERT INTO t VALUES (20, NULL, now()), (21, 'past', '0044-03-15'), (22, 'far', '9999-12-31 23:59:59.9')"
    )
    connector = config(settings(bench.url, "timestamp+incrementing", topic__prefix=bench.prefix), bench.prefix)
    Source(connector, bench.kafka).run(threading.Event(), once=True, timeout=20)
    assert compared(bench, connector, f"{bench.prefix}t").equal


def test_a_partitioned_table(bench: Bench) -> None:
    bench.sql.execute(
        "CREATE TABLE t (id int8 PRIMARY KEY, name text, changed timestamp NOT NULL DEFAULT timezone('utc', now()))"
        " PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (3); CREATE TABLE t2 PARTITION OF t DEFAULT;"
        "INSERT INTO t SELECT n, 'A' FROM generate_series(1, 5) AS n"
    )
    written = settings(
        bench.url, "timestamp+incrementing", table__types="PARTITIONED TABLE", topic__prefix=bench.prefix
    )
    connector = config(written, bench.prefix)
    Source(connector, bench.kafka).run(threading.Event(), once=True, timeout=20)
    bench.sql.execute("UPDATE t SET name = 'B' WHERE id = 4")
    found = compared(bench, connector, f"{bench.prefix}t")
    assert (found.expected, found.findings) == (5, {Finding.PENDING: 1})


def test_two_tables_of_one_topic(bench: Bench) -> None:
    """Of one table alone nobody can say that a key of the topic is nobody's; a first load must not remove it either."""
    bench.sql.execute(OTHER)
    bench.sql.execute("CREATE TABLE u (LIKE t INCLUDING ALL); INSERT INTO u VALUES (10, 'U')")
    routed = {
        "transforms": "key,id,one",
        "transforms.one.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.one.regex": ".*",
        "transforms.one.replacement": f"{bench.prefix}one",
    }
    written = settings(bench.url, "timestamp+incrementing", table__whitelist="t,u", topic__prefix=bench.prefix)
    connector = config(written | routed, bench.prefix)
    with pytest.raises(CompactoryError, match="may be of"):  # what a first load must not remove is held
        Source(connector, bench.kafka).run(threading.Event(), once=True, timeout=20)
    [found] = verify(connector, bench.kafka, Options())
    assert (found.equal, found.tables, found.stored) == (True, ("public.t", "public.u"), 6)
    bench.topic = found.topic
    send(bench, b"ghost", b"{}")
    [found] = verify(connector, bench.kafka, Options(), tables=["u"])
    assert found.equal
    [found] = verify(connector, bench.kafka, Options())
    assert found.findings == {Finding.EXTRA: 1}


def test_a_row_that_a_cursor_misses(bench: Bench) -> None:
    """A view can't be polled by row versions: what commits behind its timestamp is never sent, and shows here."""
    bench.sql.execute(OTHER)
    connector = config(
        settings(bench.url, "timestamp", table__whitelist="v", table__types="VIEW", topic__prefix=bench.prefix),
        bench.prefix,
    )
    Source(connector, bench.kafka).run(threading.Event(), once=True, timeout=20)
    bench.sql.execute("INSERT INTO t VALUES (6, 'late', '2001-01-01')")
    Source(connector, bench.kafka).run(threading.Event(), once=True, timeout=20)
    found = compared(bench, connector, f"{bench.prefix}v")
    assert [(each.key, each.finding) for each in found.differences] == [(b"6", Finding.MISSING)]


def test_a_row_that_can_not_be_converted(bench: Bench) -> None:
    bench.sql.execute(OTHER)
    bench.sql.execute("ALTER TABLE t ADD amount numeric NOT NULL DEFAULT 1")
    connector = config(settings(bench.url, "timestamp+incrementing", topic__prefix=bench.prefix), bench.prefix)
    Source(connector, bench.kafka).run(threading.Event(), once=True, timeout=20)
    bench.sql.execute("UPDATE t SET amount = 'NaN' WHERE id = 1")
    found = compared(bench, connector, f"{bench.prefix}t")
    assert found.findings == {Finding.UNREADABLE: 1}
    assert not found.equal


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
                sql.execute(self._statements[self.commits % len(self._statements)].encode())
                self.commits += 1
                self._stop.wait(max(0.0, began + self.commits / self._rate - time.monotonic()))


WRITES = [
    "UPDATE terminal_acquirer SET acquirer_id = clock_timestamp()::text WHERE id = 1 + floor(random() * 2000)",
    "UPDATE terminal_acquirer SET is_active = NOT is_active WHERE id = 1 + floor(random() * 2000)",
    "UPDATE terminal_acquirer SET acquirer_id = clock_timestamp()::text WHERE id = 1 + floor(random() * 20)",
    "INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('N', clock_timestamp()::text)",
    "DELETE FROM terminal_acquirer WHERE id = 1 + floor(random() * 40)",
    "INSERT INTO terminal_acquirer VALUES (1 + random() * 40, 'R', 'R') ON CONFLICT DO NOTHING",
]


@pytest.mark.proof
def test_no_false_alarm_and_every_true_one_under_load(bench: Bench) -> None:
    adopt(bench.sql, Adoption(table="terminal_acquirer", key=("id",)))
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
