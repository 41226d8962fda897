"""A first load beside a topic that has most of it already."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest
from confluent_kafka import Producer

from compactory.kafka.client import Kafka
from compactory_connectors.source.offsets.offset import SourceOffset
from compactory_connectors.source.offsets.offset_parts import Cursor, Identity, Phase
from compactory_connectors.source.verify.comparison import Comparison
from tests.source.harness import Feed, add, expected, holding

NOWHERE = Identity(system_identifier="", timeline=0, postmaster_start="", statistics_start="", table_oid=0)


def compared(feed: Feed) -> None:
    """As after an import: the topic is that of the feed."""
    offset = SourceOffset(identity=NOWHERE, phase=Phase.COMPARING, timestamp=1)
    feed.stored = offset.dumps()
    feed.restart()


def test_only_what_the_topic_lacks_is_sent(feed: Feed, sql: psycopg.Connection) -> None:
    add(sql, "T1", "T2", "T3")
    feed.poll()
    add(sql, "T4")
    sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 2")
    compared(feed)
    assert sorted(key for key, _ in feed.poll()) == [b"2", b"4"]
    assert feed.topic == expected(feed.url)
    assert feed.poll() == []
    assert SourceOffset.loads(feed.stored or b"").phase is Phase.STEADY


def test_of_several_rows_with_one_key_only_the_last_counts(database: str, sql: psycopg.Connection) -> None:
    """The older row differs from the topic, and must not come back for a moment."""
    feed = Feed(database, key="terminal_id")
    add(sql, "T1", "T1", "T2", active=True)
    feed.poll()
    assert len(feed.sent) == 3
    compared(feed)
    assert feed.poll(1) == []
    add(sql, "T1")
    compared(feed)
    assert [value for _, value in feed.poll(1)] == [b"4|T1|A|t"]
    feed.close()


def test_deactivated_rows_are_compared_with_what_lives(database: str, sql: psycopg.Connection) -> None:
    feed = Feed(database, key="terminal_id")
    add(sql, "T1", active=False)
    add(sql, "T1")
    add(sql, "gone", active=False)
    compared(feed)
    feed.topic |= {b"gone": b"old"}
    feed.comparison = holding(feed.topic)
    assert feed.poll() == [(b"T1", b"2|T1|A|t"), (b"gone", None)]
    feed.close()


@pytest.mark.parametrize("key", ["id", "terminal_id"])
def test_random_tables_and_topics(database: str, seeded: random.Random, sql: psycopg.Connection, key: str) -> None:
    """Whatever the topic held: it ends as the table, and no record equals the one before it of its key."""
    for _ in range(8):
        sql.execute("TRUNCATE terminal_acquirer")
        for _ in range(seeded.randrange(40)):
            add(sql, f"T{seeded.randrange(15)}", active=seeded.random() < 0.8)
        feed = Feed(database, key=key)
        feed.poll()
        whole = dict(feed.topic)
        feed.topic = {name: seeded.choice([value, value, b"other"]) for name, value in whole.items()}
        for name in list(feed.topic):
            if seeded.random() < 0.2:
                del feed.topic[name]
        before, feed.sent = dict(feed.topic), []
        compared(feed)
        feed.poll(seeded.choice([1, 3, 100]))
        assert feed.topic == whole
        for name, value in feed.sent:
            assert before.get(name) != value
            before[name] = value
        feed.close()


def test_a_key_that_differs_between_partitions_is_sent(kafka: str, unique: Callable[[str], str]) -> None:
    """Partitions were added: which of the two records a reader takes, nobody here can know."""
    topic = unique("t")
    Kafka(kafka).create_topic(topic, partitions=2, replication=1, config={"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": kafka})
    for partition, key, value in ((0, "a", "1"), (1, "a", "2"), (0, "b", "1"), (1, "b", "1"), (0, "c", "1")):
        producer.produce(topic, value, key, partition=partition)
    producer.produce(topic, None, "d", partition=0)
    assert producer.flush(30) == 0
    comparison = Comparison.with_topic(Kafka(kafka), topic)
    records = [(b"a", b"1"), (b"b", b"1"), (b"c", b"2"), (b"d", None), (b"e", None), (b"f", b"1")]
    assert comparison.lacking(records) == [(b"a", b"1"), (b"c", b"2"), (b"f", b"1")]
    assert comparison.lacking(records[:1] + [(b"c", b"2")]) == []


def test_rows_beyond_a_place_are_sent_again_and_no_others(feed: Feed, sql: psycopg.Connection) -> None:
    """With a seen snapshot nothing that was never sent is given up, wherever the place is."""
    add(sql, "T1", "T2")
    sql.execute("ALTER TABLE terminal_acquirer DISABLE TRIGGER USER")
    for number in (1, 2):
        sql.execute(
            f"UPDATE terminal_acquirer SET updated_date = '2024-01-01 00:00:00.00000{number}' WHERE id = {number}"
        )
    sql.execute("ALTER TABLE terminal_acquirer ENABLE TRIGGER USER")
    feed.restart()
    feed.poll()
    first = 1_704_067_200_000_001
    for place, again in (
        (Cursor.from_micros(first, 1), [b"2"]),
        (Cursor.from_micros(first, 0), [b"1", b"2"]),
        (Cursor.from_micros(first), [b"1", b"2"]),  # without an id, as Connect begins: from that time on
        (Cursor.from_micros(first + 10, 5), []),
    ):
        offset = SourceOffset.loads(feed.stored or b"")
        feed.stored = rewound(offset, place).dumps()
        feed.restart()
        assert sorted(key for key, _ in feed.poll()) == again
        assert feed.poll() == []
        feed.restart()
        assert feed.poll() == []  # the place was used up
    [late] = add(sql, "T3")
    feed.stored = rewound(SourceOffset.loads(feed.stored or b""), Cursor.from_micros(4_000_000_000_000_000, 9)).dumps()
    feed.restart()
    assert [key for key, _ in feed.poll()] == [str(late).encode()]


def rewound(offset: SourceOffset, place: Cursor) -> SourceOffset:
    return replace(offset.rewound_to(place), partial_polls=())


def test_an_offset_of_three_fields_is_a_place_to_go_on_from(feed: Feed, sql: psycopg.Connection) -> None:
    """Kafka Connect's own value under our key, and what no source wrote."""
    add(sql, "T1", "T2", "T3")
    (stamp,) = sql.execute(
        "SELECT (extract(epoch FROM updated_date) * 1000000)::int8 FROM terminal_acquirer WHERE id = 2"
    ).fetchone() or (0,)
    feed.stored = b'{"timestamp_nanos":%d,"incrementing":2,"timestamp":%d}' % (stamp % 1_000_000 * 1000, stamp // 1000)
    feed.restart()
    assert [key for key, _ in feed.poll()] == [b"3"]
    assert feed.poll() == []
    add(sql, "T4")
    assert [key for key, _ in feed.poll()] == [b"4"]
