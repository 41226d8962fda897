"""The relay on real Postgres and Kafka: what is committed is sent, in order, once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partialmethod
from typing import Any
from zlib import crc32

import psycopg
import pytest

from compactory import GlobalStore
from compactory.errors import LeaseLost, Unreachable
from compactory.kafka.client import Kafka
from compactory_cli.stack.port import free_port
from compactory_connectors.backoff import Backoff
from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.outbox import (
    Outbox,
    OutboxMessage,
    OutboxRelay,
    session,
    statements,
    topic_facts,
)
from compactory_connectors.outbox.operators import drop, failed_messages, retry
from compactory_connectors.outbox.statements import LockedTopic
from compactory_connectors.outbox.status import OutboxWorker, topic_statuses
from compactory_connectors.postgres.jdbc_url import checked_url
from tests.outbox.harness import Bench
from tests.outbox.mortal import BATCH, STEPS
from tests.source.workload import wait_until
from tests.stack.proxy import Proxy


def test_what_is_committed_is_sent_and_nothing_else(bench: Bench) -> None:
    """Guarantee 14: a message exists if and only if its transaction committed, savepoints included."""
    topic = bench.topic()
    with psycopg.connect(bench.url) as conn:
        bench.outbox.publish(conn, topic, b"rolled back", key="k")
        conn.rollback()
        bench.outbox.publish(conn, topic, b"1", key="k")
        with conn.transaction():
            bench.outbox.publish(conn, topic, b"2", key="k")
        with conn.transaction(force_rollback=True):
            bench.outbox.publish(conn, topic, b"to a savepoint", key="k")
        conn.execute("SELECT compactory.publish(%s, %s::text, 'k')", [topic, "3"])
    bench.drain()
    assert bench.values(topic) == ["1", "2", "3"]
    assert bench.left() == 0


def test_ids_that_begin_anew_are_sent_as_well(bench: Bench) -> None:
    """Logical replication copies no sequence: the database that it filled gives ids that were sent before."""
    topic = bench.topic()
    for value in (b"1", b"2", b"3"):
        bench.publish(topic, value)
    bench.drain()
    bench.sql.execute("ALTER SEQUENCE compactory.kafka_messages_id_seq RESTART")
    bench.publish(topic, b"4")
    bench.relay()
    bench.wait_for(topic, "1", "2", "3", "4")
    wait_until(lambda: bench.info(topic, "reached") == 1 and bench.left() == 0, what="the deletion")


HEADERS = {"text": "é", "bytes": b"\xff", "zero": b"\0", "none": None}


def test_keys_partitions_headers_and_tombstones_arrive_as_published(bench: Bench) -> None:
    topic = bench.topic(4)
    number = bench.publish(topic, b"\xff\x00", key="a", headers=HEADERS)
    bench.sql.execute(
        """INSERT INTO compactory.kafka_messages (topic, payload, key, headers)
                VALUES (%s, 'sql', 'z', '{"no base64": {"base64": "abc"}}')""",
        [topic],
    )
    bench.publish(topic, None, key="a")
    bench.publish(topic, "no key", key=None)
    for key in ("b", "c", "d", "e"):
        bench.publish(topic, "together", key=key, partition_key="a")
    bench.drain()
    first = next(message for message in read(bench.kafka, topic) if message.value() == b"\xff\x00")
    id_header = ("compactory-message-id", str(number).encode())
    assert first.headers()[0] == id_header
    assert dict(first.headers()[1:]) == {"text": "é".encode(), "bytes": b"\xff", "zero": b"\0", "none": None}
    assert next(dict(m.headers()) for m in read(bench.kafka, topic) if m.key() == b"z")["no base64"] == b"abc"
    records = [m for m in read(bench.kafka, topic) if m.key() not in (None, b"z")]
    assert {record.partition() for record in records} == {first.partition()}
    assert [record.value() for record in records][1] is None


@pytest.mark.parametrize("partitioner", ["murmur2_random", "consistent_random"])
def test_a_partition_key_goes_where_a_key_of_that_name_goes(bench: Bench, partitioner: str) -> None:
    topic = bench.topic(8)
    properties = {"bootstrap.servers": bench.address, "partitioner": partitioner}
    direct = Outbox("kafka", kafka=properties)
    for name in "abcdef":
        bench.publish(topic, name, key=name)
        bench.publish(topic, name, key="other", partition_key=name)
        direct.publish(None, topic, name, key="other", partition_key=name)
    with OutboxRelay(bench.url, properties) as relay:
        assert relay.drain(threading.Event())
    places = Counter((message.value(), message.partition()) for message in read(bench.kafka, topic))
    assert list(places.values()) == [3] * 6
    assert ((b"a", crc32(b"a") % 8) in places) == (partitioner == "consistent_random")


def test_a_lower_id_that_commits_late_is_found(bench: Bench) -> None:
    """Guarantee 14: ids are given before commits; rows are found by exact id however late they commit."""
    topic = bench.topic()
    relay = bench.relay()
    with psycopg.connect(bench.url) as late, psycopg.connect(bench.url) as other:
        bench.outbox.publish(late, topic, "late", key="l")
        for value in "abc":
            bench.outbox.publish(other, topic, value, key="o")
            other.commit()
            wait_until(lambda value=value: bench.values(topic)[-1:] == [value], what=value)
        assert bench.values(topic) == ["a", "b", "c"]
        late.commit()
    bench.wait_for(topic, "a", "b", "c", "late")
    assert relay.stop()
    assert bench.left() == 0


def test_a_poison_message_is_set_aside_alone_and_its_key_waits(bench: Bench) -> None:
    """Guarantee 15: one poison row never takes its neighbours along; its key waits until it is retried or dropped."""
    topic = bench.topic(**{"max.message.bytes": "2000"})
    for n in range(20):
        bench.publish(topic, f"{n}", key=f"k{n % 2}")
    poison = bench.publish(topic, random.Random(1).randbytes(5000), key="k0")
    for n in range(20, 30):
        bench.publish(topic, f"{n}", key=f"k{n % 2}")
    relay = bench.relay()
    wait_until(lambda: bench.left() == 0, what="all but those that wait")
    assert bench.values(topic) == [str(n) for n in range(30) if n < 20 or n % 2]
    found = failed_messages(bench.sql, topic)
    assert [item.id for item in found if item.reason] == [poison]
    reason = f"a message of 5002 bytes is too large for topic {topic!r}, whose max.message.bytes is 2000"
    assert str(found[0].reason).startswith(reason)
    assert len(found) == 6
    assert retry(bench.sql, topic) == 6  # refused again
    wait_until(lambda: relay.board.picture()["failed"].get(topic) == 2, what="the second refusal")
    wait_until(lambda: bench.left() == 0, what="those that wait")
    assert drop(bench.sql, ids=[poison]) == 1
    wait_until(lambda: len(bench.values(topic)) == 30, what="those that waited")
    assert bench.values(topic)[-5:] == [str(n) for n in range(20, 30, 2)]
    assert failed_messages(bench.sql) == []
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match=r"of 20001 bytes is too large .* takes 2000"):
        bench.publish(topic, b"x" * 20_000)  # the relay has asked for the limit by now


def test_a_topic_that_does_not_exist_keeps_no_other_waiting(bench: Bench, unique) -> None:
    """It is sent as soon as it is there, and not a minute later."""
    missing, topic = unique("missing"), bench.topic()
    bench.publish(missing, "1")
    relay = bench.relay(threads=1)
    wait_until(lambda: bench.info(missing, "error"), what="the error")
    assert "does not exist" in bench.info(missing, "last_error")
    bench.publish(topic, "other")
    bench.wait_for(topic, "other")
    bench.kafka.create_topic(missing, partitions=1)
    wait_until(lambda: bench.left() == 0, 20, what="the message")
    bench.wait_for(missing, "1")
    wait_until(lambda: bench.info(missing, "locked_by") is None, what="the lock's release")
    assert bench.info(missing, "retries") == 0
    assert bench.info(missing, "max_bytes") > 0, "publishers check the size at once"
    assert relay.board.picture()["retries"][missing] == 1


def test_a_topic_made_while_no_relay_runs_is_noticed_at_once(bench: Bench, unique) -> None:
    missing = unique("missing")
    bench.publish(missing, "1")
    relay = bench.relay()
    wait_until(lambda: bench.info(missing, "error"), what="the error")
    assert relay.stop()
    bench.kafka.create_topic(missing, partitions=1)
    wait_until(lambda: bench.kafka.topics([missing]), what="the topic")
    bench.drain()
    assert bench.values(missing) == ["1"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("sign", ["SIGKILL", "SIGSTOP"])
def test_a_relay_that_dies_or_freezes_is_taken_over(bench: Bench, impatient: None, step: str, sign: str) -> None:
    """Guarantee 15: order is kept across take-overs, a holder that lost its lock sends nothing, nothing goes twice."""
    topics = [bench.topic(2) for _ in range(3)]  # a thread sends some of them together
    with bench.sql.transaction():
        bench.outbox.publish_list(
            bench.sql,
            [OutboxMessage(topic=topic, payload=f"{n}", key=f"k{n % 4}") for n in range(BATCH * 4) for topic in topics],
        )
    mortal = bench.mortal(step, sign)
    wait_until(mortal.stopped if sign == "SIGSTOP" else mortal.ended, what="the signal")
    bench.relay(batch=BATCH)
    wait_until(lambda: bench.left() == 0, what="the take-over")
    expected = dict.fromkeys(topics, BATCH * 4)
    if sign == "SIGSTOP":
        mortal.resume()
        last = bench.publish(topics[0], "after", key="k0")  # either relay may send it
        wait_until(lambda: last in [record.id for record in bench.sent(topics[0])], what="the last")
        expected[topics[0]] += 1
    for topic in topics:
        sent = bench.sent(topic)
        assert sorted(record.id for record in sent) == sorted({record.id for record in sent})
        assert len(sent) == expected[topic]
        for key in range(4):
            mine = [record.id for record in sent if record.key == f"k{key}"]
            assert mine == sorted(mine)


def test_a_relay_that_freezes_as_it_takes_a_lock_keeps_nobody_waiting(bench: Bench) -> None:
    """The lock is not committed: nobody sees a name that could be fenced."""
    topic = bench.topic()
    bench.publish(topic, "1")
    connection, _ = statements.open_outbox(checked_url(bench.url).conninfo, "frozen")
    with closing(connection):
        connection.execute("BEGIN")
        assert statements.OutboxTable(connection, "frozen").claim([statements.PendingTopic(topic)], {})
        bench.relay()
        wait_until(lambda: bench.left() == 0, what="the message")


def sent_together(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The topics of each transaction from now on."""
    send, together = session.SenderSession._send, list[set[str]]()

    def noting(self: session.SenderSession, locked: list[LockedTopic], *rest: Any) -> None:
        together.append({topic.name for topic in locked if topic.batch.rows})
        send(self, locked, *rest)

    monkeypatch.setattr(session.SenderSession, "_send", noting)
    return together


def test_of_topics_that_are_sent_together_none_waits_for_another(
    bench: Bench, impatient: None, monkeypatch: pytest.MonkeyPatch, unique
) -> None:
    """Guarantee 15: one topic does not exist and one refuses a message; all else of the same transaction is sent."""
    topics, small, missing = (
        [bench.topic() for _ in range(4)],
        bench.topic(**{"max.message.bytes": "2000"}),
        unique("no"),
    )
    with bench.sql.transaction():
        bench.outbox.publish_list(
            bench.sql,
            [OutboxMessage(topic=topic, payload=f"{n}") for n in range(40) for topic in [*topics, small, missing]],
        )
        poison = bench.outbox.publish(bench.sql, small, random.Random(1).randbytes(5000))
    together = sent_together(monkeypatch)
    relay = bench.relay(threads=1, batch=60)
    wait_until(lambda: bench.left() == 40, what="all but those of the missing topic")
    assert set(relay.board.picture()["retries"]) == {missing}
    assert max(map(len, together)) > 2
    for topic in [*topics, small]:
        assert sorted(bench.values(topic), key=lambda value: int(value or 0)) == [f"{n}" for n in range(40)]
    assert [item.id for item in failed_messages(bench.sql)] == [poison]
    bench.kafka.create_topic(missing, partitions=1)
    wait_until(lambda: bench.left() == 0, what="the missing topic's")


def test_a_topic_that_failed_is_sent_by_itself(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 15: others wait for it once at most, not once a minute."""
    failed, *topics = (bench.topic() for _ in range(4))
    bench.sql.execute("INSERT INTO compactory.kafka_topic_info (topic, retries) VALUES (%s, 1)", [failed])
    with bench.sql.transaction():
        bench.outbox.publish_list(bench.sql, [OutboxMessage(topic=topic, payload="v") for topic in [failed, *topics]])
    together = sent_together(monkeypatch)
    bench.drain(threads=1)
    assert {failed} in together
    assert max(map(len, together)) > 1


def test_two_relays_share_topics(bench: Bench) -> None:
    """Guarantee 15: order per key at any number of relays and threads."""
    topics = [bench.topic() for _ in range(4)]
    relays = [bench.relay(threads=2, batch=7), bench.relay(threads=2, batch=7)]
    for n in range(40):
        with bench.sql.transaction():
            bench.outbox.publish_list(
                bench.sql, [OutboxMessage(topic=topic, payload=f"{n}", key="k") for topic in topics]
            )
    wait_until(lambda: bench.left() == 0, what="everything")
    for topic in topics:
        assert bench.values(topic) == [f"{n}" for n in range(40)]
    assert all(relay.stop() for relay in relays)
    assert bench.sql.execute(
        "SELECT count(*) FROM compactory.kafka_topic_info WHERE locked_by IS NOT NULL"
    ).fetchone() == (0,)


def test_a_topic_that_fails_between_batches_repeats_nothing(
    bench: Bench, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 15: what Kafka has is deleted before the lock is given back after an error."""
    topic = bench.topic()
    with bench.sql.transaction():
        bench.outbox.publish_list(
            bench.sql, [OutboxMessage(topic=topic, payload=f"{n}", key="k") for n in range(BATCH * 2)]
        )
    look, calls = topic_facts.TopicFacts.partitions, []

    def failing(self: topic_facts.TopicFacts, *given: Any) -> int:
        calls.append(given)
        if len(calls) == 2:
            raise topic_facts.TopicFailed("gone for a moment")
        return look(self, *given)

    monkeypatch.setattr(topic_facts.TopicFacts, "partitions", failing)
    bench.relay(batch=BATCH)
    wait_until(lambda: bench.left() == 0, what="everything")
    assert bench.values(topic) == [f"{n}" for n in range(BATCH * 2)]


def test_a_holder_that_froze_within_a_transaction_keeps_nobody_out(bench: Bench, impatient: None) -> None:
    topic = bench.topic()
    bench.publish(topic, "v")
    with psycopg.connect(bench.url, application_name="compactory-outbox frozen") as frozen:
        statement = "INSERT INTO compactory.kafka_topic_info (topic, locked_by, locked_at) VALUES (%s, 'frozen', now())"
        frozen.execute(statement, [topic])
        frozen.commit()
        frozen.execute("SELECT FROM compactory.kafka_topic_info FOR UPDATE")
        bench.relay()
        bench.wait_for(topic, "v")
        with pytest.raises(psycopg.OperationalError):
            frozen.execute("SELECT 1")


def test_a_lock_that_is_lost_is_noticed_whatever_the_other_topics_have(bench: Bench) -> None:
    """Guarantee 15: a holder looks for each of the locks that it renews or gives back."""
    pending = [statements.PendingTopic(bench.topic()) for _ in range(2)]
    for each in pending:
        bench.publish(each.name, "m")
    connection, _ = statements.open_outbox(checked_url(bench.url).conninfo, "holder")
    with closing(connection):
        own = statements.OutboxTable(connection, "holder")
        held = [LockedTopic(pending[number], claim) for number, claim in enumerate(own.claim(pending, {}))]
        taken = "UPDATE compactory.kafka_topic_info SET locked_by = 'another' WHERE topic = %s"
        bench.sql.execute(taken, [held[1].name])
        with pytest.raises(LeaseLost, match="one of 2 topics"), own.sending(held, [], 1) as finish:
            finish()
        with pytest.raises(LeaseLost, match="one of 2 topics"):
            own.release(held)


def test_a_directory_is_fed_by_an_outbox(bench: Bench) -> None:
    """Guarantee 14, up to a store: an entry changes, and a NULL payload removes it, if its transaction committed."""
    topic = bench.topic(**{"cleanup.policy": "compact"})
    bench.relay()
    with GlobalStore(bench.address, [topic]) as store:
        view = store[topic]
        bench.publish(topic, b'{"acquirer": "A1"}', key="t1")
        bench.publish(topic, b'{"acquirer": "A2"}', key="t2")
        wait_until(lambda: len(view) == 2, what="both entries")
        assert view.get("t1") == {"acquirer": "A1"}
        with bench.sql.transaction(force_rollback=True):
            bench.outbox.publish(bench.sql, topic, None, key="t2")
        bench.publish(topic, None, key="t1")
        wait_until(lambda: view.get("t1") is None, what="the removal")
        assert view.get("t2") == {"acquirer": "A2"}


def test_a_directory_ends_the_same_when_messages_come_again(bench: Bench) -> None:
    """Guarantee 14, up to a store, after a fail-over that lost the delete: a store needs no ids to drop repetitions."""
    topic = bench.topic(**{"cleanup.policy": "compact"})
    for key, value in (("t1", "1"), ("t1", "2"), ("t2", "3"), ("t2", None), ("t3", "4")):
        bench.publish(topic, value and f'{{"n": {value}}}', key=key)
    bench.sql.execute("CREATE TABLE lost AS SELECT * FROM compactory.kafka_messages")
    bench.drain()
    bench.sql.execute("INSERT INTO compactory.kafka_messages OVERRIDING SYSTEM VALUE SELECT * FROM lost")
    bench.sql.execute("UPDATE compactory.kafka_topic_info SET reached = 0")
    bench.drain()
    assert len(bench.sent(topic)) == 10
    with GlobalStore(bench.address, [topic]) as store:
        assert dict(store[topic].items()) == {"t1": {"n": 2}, "t3": {"n": 4}}


def test_a_relay_starts_before_kafka(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kafka, "topics", partialmethod(Kafka.topics, timeout=0.5))
    monkeypatch.setattr(Backoff, "pause", lambda _: 0.1)
    topic = bench.topic()
    bench.publish(topic, "v")
    proxy = Proxy()
    relay = OutboxRelay(bench.url, proxy.address)
    try:
        relay.start()
        assert proxy.address in str(relay.board.picture()["detail"])
        assert relay.alive
        proxy.target = int(bench.address.rpartition(":")[2])
        bench.wait_for(topic, "v")
        wait_until(lambda: relay.board.picture()["detail"] is None, what="the end of the error")
    finally:
        assert relay.stop()
        proxy.close()


def test_a_relay_that_waits_for_kafka_is_alive_and_ends_soon(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(_: OutboxRelay) -> int:
        raise Unreachable("Kafka", "not yet")

    relay = OutboxRelay(bench.url, f"127.0.0.1:{free_port()}")
    worker = OutboxWorker(relay)
    assert worker.live()  # its start may take as long as Kafka is waited for
    assert worker.blocking() == [{"outbox": "connecting to Postgres and Kafka"}]
    monkeypatch.setattr(OutboxRelay, "_check", unreachable)
    relay.start()
    assert worker.live()
    began = time.monotonic()
    assert relay.stop()  # the client waits for ten seconds
    assert time.monotonic() - began < 8


def test_a_take_over_that_fails_half_way_repeats_nothing(
    bench: Bench, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 15: the lock changes hands with the delete of what its holder sent last, or not at all."""
    topic = bench.topic()
    with bench.sql.transaction():
        bench.outbox.publish_list(
            bench.sql, [OutboxMessage(topic=topic, payload=f"{n}", key="k") for n in range(BATCH * 3)]
        )
    mortal = bench.mortal("after commit")
    wait_until(mortal.ended, what="the signal")
    delete, calls = statements.OutboxTable._delete_sent, []

    def failing(self: statements.OutboxTable, *given: Any) -> None:
        calls.append(given)
        if len(calls) == 1:
            raise psycopg.OperationalError("the server was restarted")
        delete(self, *given)

    monkeypatch.setattr(statements.OutboxTable, "_delete_sent", failing)
    bench.relay(batch=BATCH)
    wait_until(lambda: bench.left() == 0, what="the take-over")
    assert calls
    assert bench.values(topic) == [f"{n}" for n in range(BATCH * 3)]


def test_a_topic_that_takes_no_records_keeps_no_other_waiting(bench: Bench) -> None:
    """Guarantee 15: Kafka's answer comes while records of the other topic are produced, and ends the producer."""
    topic, refused = bench.topic(), "__transaction_state"
    with bench.sql.transaction():
        bench.sql.execute(
            "SELECT count(compactory.publish(%s, n::text, 'k')) FROM generate_series(1, 20000) n", [topic]
        )
        bench.sql.execute("SELECT compactory.publish(%s, 'v', 'k')", [refused])
    bench.relay(threads=1)
    wait_until(lambda: len(bench.values(topic)) == 20_000, what="the other topic")
    wait_until(lambda: "Topic authorization failed" in (bench.info(refused, "last_error") or ""), what="the reason")


def test_a_kafka_that_is_slow_gets_smaller_batches(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 12: under a quota, say, a batch of the usual size takes longer than a transaction may."""
    transact = Publisher.transact

    def slow(publisher: Publisher, send: Callable[[Any], object]) -> None:
        def sent(producer: Any) -> None:
            send(producer)
            if len(producer) > 50:
                raise Unreachable("Kafka", "it takes records too slowly")

        transact(publisher, sent)

    monkeypatch.setattr(Publisher, "transact", slow)
    topic = bench.topic()
    bench.sql.execute("SELECT count(compactory.publish(%s, n::text, 'k')) FROM generate_series(1, 60) n", [topic])
    bench.relay(threads=1)
    bench.wait_for(topic, *map(str, range(1, 61)))


@pytest.mark.parametrize(
    "refusal",
    [
        "ALTER DATABASE {} SET default_transaction_read_only = on",
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
           CREATE TRIGGER refuse BEFORE INSERT ON compactory.kafka_topic_info EXECUTE FUNCTION refuse()""",
    ],
)
def test_a_database_that_takes_no_writes_is_tried_with_growing_pauses(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """Read-only, or its disk is full: the relay filled its log with the reason, ten times a second."""
    pause, pauses = Backoff.pause, [0.0]
    monkeypatch.setattr(Backoff, "pause", lambda backoff: pauses.append(pause(backoff)) or pauses[-1])
    bench.sql.execute(refusal.replace("{}", bench.sql.info.dbname))
    bench.publish(bench.topic(), "1")
    bench.relay(threads=1)
    wait_until(lambda: max(pauses) > 0.5, 10, "pauses that grow")


def test_a_number_of_waiting_messages_that_was_not_counted_to_its_end_is_told_so(bench: Bench) -> None:
    topic = "b1"
    bench.sql.execute(
        "INSERT INTO compactory.kafka_topic_info (topic) SELECT 'b' || n FROM generate_series(1, 9999) AS n"
    )
    for more, published in ((False, 9), (True, 1), (True, 5)):
        bench.sql.execute("SELECT compactory.publish(%s, 'v', 'k') FROM generate_series(1, %s)", [topic, published])
        (status,) = [item for item in topic_statuses(bench.sql) if item.topic == topic]
        assert (status.pending, status.more) == (10 if more else 9, more)
