"""Records at fault: isolated, set aside with their reason, tried again, dropped; the others go on, in order per key."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import psycopg
import pytest

from compactory.records import Partition
from compactory_connectors.sink import Records, SinkStopped
from compactory_connectors.sink.operators import drop, failed_records, retry, set_position
from tests.sink.harness import Bench, count
from tests.source.workload import wait_until

REFUSES = "ALTER TABLE effects ADD CONSTRAINT refuses CHECK (value NOT LIKE 'bad%')"


def raises(connection: psycopg.Connection[Any], records: Records) -> None:
    count(connection, records)
    if any((record.value or b"").startswith(b"bad") for record in records):
        raise KeyError("secret")


def leaves(connection: psycopg.Connection[Any], records: Records) -> None:
    count(connection, records)
    if any((record.value or b"").startswith(b"bad") for record in records):
        sys.exit("secret")


@pytest.mark.parametrize(
    ("handler", "sql", "reason"),
    [
        (count, REFUSES, "refuses"),
        (count, "ALTER TABLE effects ADD CHECK (1 / (value NOT LIKE 'bad%')::int = 1)", "division by zero"),
        (count, "ALTER TABLE effects ADD CHECK (repeat('-', (value LIKE 'bad%')::int * 2147483647) >= '')", "large"),
        (count, "ALTER TABLE counters ADD FOREIGN KEY (key) REFERENCES known DEFERRABLE INITIALLY DEFERRED", "foreign"),
        (raises, "SELECT", "the handler raised KeyError at test_failed.py"),
        (leaves, "SELECT", "the handler raised SystemExit at test_failed.py"),
    ],
)
def test_they_are_isolated_and_later_ones_of_their_keys_wait(bench: Bench, handler: Any, sql: str, reason: str) -> None:
    bench.sql.execute("CREATE TABLE known AS SELECT 'good' || n AS key FROM generate_series(0, 9) AS n")
    bench.sql.execute("ALTER TABLE known ADD PRIMARY KEY (key)")
    bench.sql.execute(sql)
    topic = bench.topic()
    good = [(f"good{n % 10}", str(n)) for n in range(40)]
    bench.produce(topic, [*good[:11], ("p", "bad 1"), *good[11:30], ("p", "2"), ("q", "bad 3"), *good[30:]])
    sink = bench.sink(topic, handler)
    bench.wait_for_end(topic)
    bench.compare(Counter(key for key, _ in good))
    found = failed_records(bench.sql, bench.name)
    assert [(item.offset, item.key, bool(item.reason)) for item in found] == [
        (11, b"p", True),
        (31, b"p", False),
        (32, b"q", True),
    ]
    assert reason in (found[0].reason or "")
    assert "secret" not in str(found)
    bench.produce(topic, [("p", "4"), ("good0", "5")])
    bench.wait_for_end(topic)
    assert len(failed_records(bench.sql, bench.name)) == 4
    wait_until(lambda: sink.board.picture()["failed"] == 4, what="the sink's count, which follows the commit")


def test_retried_they_are_applied_in_order_and_dropped_they_free_those_that_wait(bench: Bench) -> None:
    bench.sql.execute(REFUSES)
    topic = bench.topic()
    bench.produce(topic, [("p", "bad 1"), ("p", "2"), ("q", "bad 3"), ("q", "4"), ("r", "5")])
    bench.sink(topic)
    bench.wait_for_end(topic)
    bench.wait_for_values("5")
    assert retry(bench.sql, bench.name) == 4
    wait_until(lambda: not any(item.again for item in failed_records(bench.sql)), what="the second try")
    assert len(failed_records(bench.sql)) == 4
    assert drop(bench.sql, bench.name, topic, 0, 2) == 1
    bench.wait_for_values("4", "5")
    bench.sql.execute("ALTER TABLE effects DROP CONSTRAINT refuses")
    assert retry(bench.sql, bench.name, topic, 0, 0) == 2
    bench.wait_for_values("bad 1", "2", "4", "5")
    wait_until(lambda: failed_records(bench.sql) == [], what="none left")
    bench.compare(Counter({"p": 2, "q": 1, "r": 1}))


def test_a_sink_that_stops_has_applied_what_came_before(bench: Bench) -> None:
    bench.sql.execute(REFUSES)
    topic = bench.topic()
    bench.produce(topic, [*((f"k{n}", str(n)) for n in range(7)), ("p", "bad"), ("k", "8")])
    sink = bench.sink(topic, on_failure="stop")
    with pytest.raises(SinkStopped, match=rf"at offset 7 .*refuses.*sink offsets set {bench.name} {topic} 0 8"):
        sink.wait(30)
    assert bench.values() == [str(n) for n in range(7)]
    assert bench.offset(topic) == 7


def test_what_is_set_wrongly_for_all_records_sets_none_aside(bench: Bench) -> None:
    bench.sql.execute("DROP TABLE effects")
    topic = bench.topic()
    bench.produce(topic, [("k", "1")])
    sink = bench.sink(topic)
    with pytest.raises(Exception, match="effects"):
        sink.wait(30)
    assert failed_records(bench.sql) == []
    assert bench.offset(topic) == 0


def set_aside(bench: Bench, *records: tuple[str, str]) -> str:
    """A topic whose bad records a sink has set aside that has ended since."""
    bench.sql.execute(REFUSES)
    topic = bench.topic()
    bench.produce(topic, records)
    sink = bench.sink(topic)
    bench.wait_for_end(topic)
    assert sink.stop()
    return topic


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_a_handler_that_ends_the_transaction_stops_the_sink(bench: Bench, ending: str) -> None:
    """Guarantee 16: otherwise the offset would move without the writes, or the writes would stay without the offset."""

    def ends(connection: psycopg.Connection[Any], records: Records) -> None:
        count(connection, records)
        connection.execute(ending)

    topic = bench.topic()
    bench.produce(topic, [("a", "1")])
    with pytest.raises(SinkStopped, match="its handler ended the transaction"):
        bench.sink(topic, ends).wait(30)
    assert bench.offset(topic) == 0


def test_a_sink_that_stops_now_applies_what_comes_before_a_key_that_was_set_aside(bench: Bench) -> None:
    """Guarantee 16: also where records were set aside by a sink that went on."""
    topic = set_aside(bench, ("p", "bad 1"))
    bench.produce(topic, [("a", "2"), ("b", "3"), ("p", "4"), ("c", "5")])
    sink = bench.sink(topic, on_failure="stop")
    with pytest.raises(SinkStopped, match=r"at offset 3 .*an earlier record of its key is set aside"):
        sink.wait(30)
    assert bench.values() == ["2", "3"]
    assert bench.offset(topic) == 3


def test_records_tried_again_stay_set_aside_where_a_sink_that_stops_fails_again(bench: Bench) -> None:
    """Guarantee 16: none of them is forgotten."""
    topic = set_aside(bench, ("p", "bad 1"), ("q", "bad 2"), ("q", "3"), ("r", "bad 4"))
    assert retry(bench.sql, bench.name) == 4
    bench.sink(topic, on_failure="stop")
    wait_until(lambda: not any(item.again for item in failed_records(bench.sql)), what="the second try")
    assert [item.offset for item in failed_records(bench.sql)] == [0, 1, 2, 3]


def test_records_that_came_after_an_operators_order_wait_no_longer_than_those_before(bench: Bench) -> None:
    topic = set_aside(bench, ("p", "bad 1"))
    bench.sql.execute("ALTER TABLE effects DROP CONSTRAINT refuses")
    assert retry(bench.sql, bench.name) == 1
    bench.produce(topic, [("p", "2")])
    bench.sink(topic)
    bench.wait_for_values("bad 1", "2")
    assert failed_records(bench.sql) == []


def test_records_set_aside_come_again_where_the_offset_is_set_back(bench: Bench) -> None:
    topic = set_aside(bench, ("p", "bad 1"), ("p", "2"), ("q", "3"))
    bench.sql.execute("TRUNCATE counters, effects")
    assert set_position(bench.sql, bench.kafka, bench.name, Partition(topic, 0), "0") == 0
    bench.sink(topic)
    bench.wait_for_end(topic)
    assert bench.values() == ["3"]
    assert [(item.offset, item.reason is None) for item in failed_records(bench.sql)] == [(0, False), (1, True)]


def test_many_are_tried_again_in_short_transactions_and_in_the_order_of_their_keys(bench: Bench) -> None:
    transactions: Counter[int] = Counter()

    def counts(connection: psycopg.Connection[Any], records: Records) -> None:
        row = connection.execute("SELECT pg_current_xact_id()::text::int8").fetchone()
        transactions.update(row or ())
        count(connection, records)

    bench.sql.execute(REFUSES)
    topic = bench.topic()
    bench.produce(topic, [("p", "bad 0"), *((f"k{n}", f"bad {n}") for n in range(300)), ("p", "1"), ("p", "2")])
    sink = bench.sink(topic, counts)
    bench.wait_for_end(topic)
    transactions.clear()
    assert retry(bench.sql, bench.name) == 303
    wait_until(lambda: not any(item.again for item in failed_records(bench.sql)), what="the second try")
    assert (len(failed_records(bench.sql)), bench.values()) == (303, [])
    assert max(transactions.values()) < 200
    bench.sql.execute("ALTER TABLE effects DROP CONSTRAINT refuses")
    assert retry(bench.sql, bench.name) == 303
    wait_until(lambda: failed_records(bench.sql) == [], what="none left")
    bench.compare(Counter({"p": 3} | {f"k{n}": 1 for n in range(300)}))
    wait_until(lambda: not any(sink.board.set_aside.values()), what="the sink's count")
