"""Moving over from Kafka Connect: its offsets, and a topic with what it sent, as it leaves them behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest
from confluent_kafka import Producer

from compactory.errors import CompactoryError, ConfigError
from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.source.offsets.offset_parts import Cursor
from compactory_connectors.source.operations.connect_offsets import (
    connector_offsets,
    find_offset,
    read_topic,
)
from compactory_connectors.source.operations.offset_admin import OffsetAdmin
from compactory_connectors.source.operations.offset_edit import new_edit
from compactory_connectors.source.operations.preview import preview
from compactory_connectors.source.polling.removal import FEW
from tests.source.conftest import Bench

Record = tuple[bytes | None, bytes | None]


class Connect:
    """Leaves behind what a Connect worker with the JDBC source connector leaves behind."""

    def __init__(self, bench: Bench, topic: str) -> None:
        self.bench, self.topic = bench, topic
        bench.kafka.create_topic(topic, partitions=3, replication=1, config={"cleanup.policy": "compact"})
        bench.kafka.create_topic(bench.topic, partitions=2, replication=1, config={"cleanup.policy": "compact"})
        self._producer = Producer({"bootstrap.servers": bench.kafka.bootstrap, "partitioner": "murmur2_random"})

    def write(self, topic: str, records: Iterable[Record]) -> None:
        for key, value in records:
            self._producer.produce(topic, value, key)
        assert self._producer.flush(30) == 0

    def poll(self) -> list[Record]:
        """Send what is visible now, and remember how far that was."""
        (shown,) = preview(self.bench.connector(), limit=100_000)
        records = [(record[0], record[1]) for record in shown.records]
        self.write(self.bench.topic, records)
        self.remember()
        return records

    def remember(self) -> None:
        """Store the greatest timestamp and id, as the connector does."""
        query = (
            "SELECT floor(extract(epoch FROM updated_date) * 1000)::int8, to_char(updated_date, 'US')::int8 * 1000, id"
            " FROM terminal_acquirer ORDER BY updated_date DESC, id DESC LIMIT 1"
        )
        row = self.bench.sql.execute(query).fetchone()
        assert row is not None
        self.store(timestamp_nanos=row[1], incrementing=row[2], timestamp=row[0])

    def store(self, **value: int) -> None:
        database = self.bench.url.rsplit("/", 1)[1]
        partition = {"protocol": "1", "table": f"{database}.public.terminal_acquirer"}
        self.write(self.topic, [(_json(["article", partition]), _json(value))])


def move(bench: Bench, connect: Connect, *, by_cursor: bool = False) -> None:
    offsets = connector_offsets(read_topic(bench.kafka, connect.topic), "article", connect.topic)
    with OffsetAdmin.open(bench.connector(), bench.kafka) as admin:
        edit = new_edit("import")
        admin.write(partial(admin.decide_import, (), offsets, edit, by_cursor=by_cursor), edit, force=False)


@pytest.fixture
def connect(bench: Bench, unique: Callable[[str], str]) -> Connect:
    return Connect(bench, unique("connect-offsets"))


@contextmanager
def change(bench: Bench, connect: Connect) -> Iterator[psycopg.Connection]:
    """Connect polls while a transaction is open; that commits late, rows change, another one is still open."""
    bench.add("T1", "T2", "T3")
    with psycopg.connect(bench.url) as late, psycopg.connect(bench.url) as open_:
        late.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('late', 'A')")
        open_.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('open', 'A')")
        bench.add("T6")
        assert [key for key, _ in connect.poll()] == [b"1", b"2", b"3", b"6"]
        late.commit()
        bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 2")
        bench.sql.execute("DELETE FROM terminal_acquirer WHERE id = 3")
        bench.add("T7")
        yield open_


def newest(records: Iterable[Record]) -> dict[bytes | None, bytes]:
    found = dict(records)
    return {key: value for key, value in found.items() if value is not None}


def table(bench: Bench) -> dict[bytes | None, bytes]:
    (shown,) = preview(bench.connector(), limit=100_000)
    return newest((record[0], record[1]) for record in shown.records)


def test_moving_over_loses_and_repeats_nothing(bench: Bench, connect: Connect) -> None:
    """Guarantees 8 and 9, across the move."""
    with change(bench, connect) as open_:
        sent = bench.records()
        move(bench, connect)
        bench.once()
        fresh = [record for record in bench.records() if record not in sent]
        assert len(bench.records()) == len(sent) + len(fresh)
        assert sorted(key or b"" for key, _ in fresh) == [b"2", b"3", b"4", b"7"]
        assert newest(bench.records()) == table(bench)
        open_.commit()
    bench.once()
    bench.once()
    assert len(bench.records()) == len(sent) + 5
    assert newest(bench.records()) == table(bench)


def test_without_the_comparison_a_late_commit_is_lost(bench: Bench, connect: Connect) -> None:
    """What Connect itself would do: this is why the topic is compared."""
    with change(bench, connect):
        move(bench, connect, by_cursor=True)
        bench.once()
        assert table(bench).keys() - newest(bench.records()).keys() == {b"4"}
        assert newest(bench.records()).keys() - table(bench).keys() == {b"3"}
    bench.add("T8")
    bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'C' WHERE id = 4")
    sent = bench.records()
    bench.once()
    assert {record[0] for record in bench.records() if record not in sent} == {b"4", b"5", b"8"}


def test_an_empty_topic_is_no_reason_to_send_everything(bench: Bench, connect: Connect) -> None:
    """Nothing can be compared: Connect's place decides, and from then on the snapshot."""
    bench.add("T1", "T2")
    connect.remember()
    bench.add("T3")
    move(bench, connect)
    bench.once()
    assert [key for key, _ in bench.records()] == [b"3"]
    bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 1")
    bench.once()
    assert sorted(key or b"" for key, _ in bench.records()) == [b"1", b"3"]


def test_a_comparison_that_is_cut_off_goes_on(bench: Bench, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.sql.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id)"
                      " SELECT 'T' || n, 'A' FROM generate_series(1, 400) n")  # fmt: skip
    connect.poll()
    bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id % 4 = 0")
    move(bench, connect)
    publish, left = Publisher.publish, [17]  # changed rows come last

    def dying(self: Publisher, *arguments: object) -> None:
        if left[0] == 0:
            raise CompactoryError("killed by the test")
        left[0] -= 1
        publish(self, *arguments)

    monkeypatch.setattr(Publisher, "publish", dying)
    with pytest.raises(CompactoryError, match="killed"):
        bench.once(batch_max_rows=20)
    assert 400 < len(bench.records()) < 500
    monkeypatch.undo()
    bench.once(batch_max_rows=20)
    assert len(bench.records()) == 500
    assert newest(bench.records()) == table(bench)


def test_keys_that_the_table_lacks_are_held_when_they_are_many(bench: Bench, connect: Connect) -> None:
    """Guarantee 13: another database than the one that Connect read is likelier than the truth."""
    bench.add("T1")
    connect.poll()
    connect.write(bench.topic, [(b"x%d" % number, b"{}") for number in range(FEW)])
    move(bench, connect)
    with pytest.raises(CompactoryError, match="source approve"):
        bench.once()
    assert all(value is not None for _, value in bench.records())


def test_a_table_that_was_polled_already_is_not_moved_again(bench: Bench, connect: Connect) -> None:
    bench.add("T1")
    connect.poll()
    move(bench, connect)
    move(bench, connect)  # nothing ran in between
    bench.once()
    with pytest.raises(ConfigError, match="offsets reset --table"):
        move(bench, connect)


def test_every_form_of_key_and_value_is_understood() -> None:
    stored = {
        b'["a",{"protocol":"1","table":"db.public.t"}]': b'{"timestamp_nanos":1500,"incrementing":2,"timestamp":1000}',
        b'["a",{"table":"t"}]': b'{"incrementing":1}',
        b'["a",{"table":"old"}]': b'{"timestamp":7}',
        b'["a",{"protocol":"1","table":"public.short"}]': b'{"incrementing":9,"timestamp":1}',
        b'["a",{"query":"query"}]': b'{"incrementing":3}',
        b'{"schema":null,"payload":["a",{"table":"wrapped"}]}': b'{"schema":null,"payload":{"incrementing":4}}',
        b'["a",{"table":"reset"}]': None,
        b'["a",{"table":"bad"}]': b'{"timestamp":"yesterday"}',
        b'["a",{"table":"empty"}]': b"{}",
        b'["file",{"filename":"x"}]': b'{"position":3}',
        b"\x00garbage": b"x",
        b'["b",{"table":"t"}]': b"{",
    }
    found = connector_offsets(stored, "a", "topic 'x'")
    cursors = {
        name: find_offset(found, ("db", "public", name))
        for name in ("t", "old", "short", "wrapped", "reset", "bad", "empty", "gone")
    }
    assert cursors["t"] is not None
    assert cursors["t"].cursor == Cursor(timestamp=1000, timestamp_nanos=1500, incrementing=2)
    assert cursors["t"].cursor.micros == 1_000_001
    assert cursors["old"] is not None
    assert cursors["old"].cursor == Cursor(timestamp=7)
    assert cursors["short"] is not None
    assert cursors["wrapped"] is not None
    assert cursors["wrapped"].cursor == Cursor(incrementing=4)
    assert cursors["reset"] is not None
    assert (cursors["reset"].cursor, cursors["reset"].problem) == (None, None)
    assert cursors["bad"] is not None
    assert "`$.timestamp`" in str(cursors["bad"].problem)
    assert cursors["empty"] is not None
    assert "neither" in str(cursors["empty"].problem)
    assert cursors["gone"] is None
    query = find_offset(found, None)
    assert query is not None
    assert query.cursor == Cursor(incrementing=3)


def test_an_unknown_name_suggests_the_nearest() -> None:
    stored: dict[bytes, bytes | None] = {b'["terminal_acquirer",{"table":"t"}]': b'{"incrementing":1}'}
    with pytest.raises(ConfigError, match=r"did you mean terminal_acquirer\?.*--connect-name"):
        connector_offsets(stored, "terminal_aquirer", "topic 'x'")
    with pytest.raises(ConfigError, match="it has none of the JDBC source connector"):
        connector_offsets({}, "a", "topic 'x'")


def test_the_newest_record_of_a_key_counts_in_whatever_partition(bench: Bench, unique: Callable[[str], str]) -> None:
    """Partitions were added to the topic, so that a key moved."""
    topic = unique("connect-offsets")
    bench.kafka.create_topic(topic, partitions=2, replication=1, config={"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": bench.kafka.bootstrap})
    producer.produce(topic, b"new", b"k", partition=0, timestamp=2000)
    producer.produce(topic, b"old", b"k", partition=1, timestamp=1000)
    producer.produce(topic, b"1", b"gone", partition=0, timestamp=1000)
    producer.produce(topic, None, b"gone", partition=1, timestamp=2000)
    assert producer.flush(30) == 0
    assert read_topic(bench.kafka, topic) == {b"k": b"new", b"gone": None}


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
