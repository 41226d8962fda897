"""What is done for a batch while the one before is applied, and what halves of a batch leave behind."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import psycopg
import pytest

from compactory.records import Partition
from compactory_connectors.sink import RecordRefused, Records, SinkStopped, session
from compactory_connectors.sink.operators import failed_records, set_position
from tests.sink.harness import Bench, count
from tests.source.workload import wait_until
from tests.stack.apache_kafka import new_admin


def test_what_is_prepared_comes_with_its_records_and_not_with_halves_of_them(bench: Bench) -> None:
    topic = bench.topic()
    bench.produce(topic, [("k", str(n)) for n in range(4)] + [("bad", "4"), ("k", "5")])
    calls: list[tuple[Any, int]] = []

    def prepare(records: Records) -> None:
        records.prepared = len(records)

    def handle(connection: Any, records: Records) -> None:
        calls.append((records.prepared, len(records)))
        if any(record.key == b"bad" for record in records):
            raise RecordRefused("it is bad")
        count(connection, records)

    bench.sink(topic, handle, prepare=prepare)
    bench.wait_for_end(topic)
    bench.compare(Counter({"k": 5}))
    assert all(prepared in {size, None} for prepared, size in calls)
    assert {prepared is None for prepared, _ in calls} == {True, False}
    assert [item.offset for item in failed_records(bench.sql, bench.name)] == [4]


def test_the_next_batch_is_prepared_while_a_handler_waits(bench: Bench) -> None:
    """Guarantee 16: and what was prepared is of no use once the batch before is read again."""
    topic = bench.topic()
    bench.produce(topic, [(f"k{n % 2}", str(n)) for n in range(50)])
    prepared = threading.Event()
    met: list[bool] = []
    refusals = iter([psycopg.errors.SerializationFailure("refused by the test")])

    def prepare(records: Records) -> None:
        prepared.set()

    def handle(connection: Any, records: Records) -> None:
        prepared.clear()
        records.prepare_next()
        met.append(prepared.wait(0.2))  # nothing is read ahead of the first
        count(connection, records)
        if len(met) > 2:
            for refusal in refusals:
                raise refusal

    bench.sink(topic, handle, prepare=prepare, batch=5)
    bench.wait_for_end(topic)
    bench.compare(Counter({"k0": 25, "k1": 25}))
    assert met.count(True) > 3


def test_records_that_are_prepared_are_not_passed_over(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 16: the end of the log is no end of what was applied."""
    monkeypatch.setattr(session, "_BEAT_EVERY", 0.0)
    topic = bench.topic()
    bench.produce(topic, [("k", str(n)) for n in range(13)])

    def handle(connection: Any, records: Records) -> None:
        if records[0].offset == 0:
            connection.execute("SELECT pg_sleep(0.2)")  # and the client hears of the end before the last are applied
        count(connection, records)

    bench.sink(topic, handle, batch=5, properties={"fetch.wait.max.ms": 1})
    bench.wait_for_end(topic)
    bench.compare(Counter({"k": 13}))


def test_an_end_reached_before_the_offset_was_set_back_passes_over_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 16: the records before that end are read again, also if the look around comes before the first."""
    monkeypatch.setattr(session, "_BEAT_EVERY", 0.0)
    monkeypatch.setattr(session, "_POLL", 0.0)
    topic = bench.topic()
    producer = bench.kafka.producer({}, {"transactional.id": bench.unique("t")}, lambda _: None)
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(5):
        producer.produce(topic, str(number), "k")
    producer.commit_transaction(30)
    places: list[tuple[int, int]] = []

    def handle(connection: Any, records: Records) -> None:
        (offset,) = connection.execute('SELECT "offset" FROM compactory.kafka_partitions').fetchone()
        places.append((offset, records[0].offset))
        count(connection, records)

    bench.sink(topic, handle)
    bench.wait_for_end(topic)  # the mark of the transaction is passed over, so the end was reached
    bench.sql.execute("TRUNCATE counters, effects")
    assert set_position(bench.sql, bench.kafka, bench.name, Partition(topic, 0), "2") == 2
    bench.produce(topic, [("k", "6")])
    bench.wait_for_values("2", "3", "4", "6")
    assert all(offset <= first for offset, first in places)  # else a process that ends now loses those between


def test_no_record_of_a_topic_made_again_is_applied(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 16: not even where the new log is longer than the offset, and nobody looked since."""
    monkeypatch.setattr(session, "_CHECK_EVERY", 1000.0)
    topic = bench.topic()
    bench.produce(topic, [("k", str(n)) for n in range(3)])
    sink = bench.sink(topic)
    bench.wait_for_end(topic)
    admin = new_admin({"bootstrap.servers": bench.address})
    admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in bench.kafka.topics([topic]), what="its end")
    bench.kafka.create_topic(topic, partitions=1)
    bench.produce(topic, [("new", str(n)) for n in range(3, 20)])
    with pytest.raises(SinkStopped, match="created again"):
        sink.wait(30)
    bench.compare(Counter({"k": 3}))
