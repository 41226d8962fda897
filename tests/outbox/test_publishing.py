"""`Outbox` on connections of all kinds: what it writes, and what it refuses in the caller's transaction."""

from __future__ import annotations

import asyncio
import random
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from compactory.errors import CompactoryError, ConfigError, Unreachable, WriteRefused
from compactory.kafka.client import Kafka
from compactory_cli.stack.port import free_port
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.outbox import Outbox, OutboxMessage, OutboxRelay
from compactory_connectors.outbox.message import headers_of

outbox = Outbox()


def rows(url: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return connection.execute(
            "SELECT id, topic, key, payload FROM compactory.kafka_messages ORDER BY id"
        ).fetchall()


def test_the_callers_transaction_decides(migrated: str, conn: psycopg.Connection) -> None:
    """Guarantee 14: publishing never commits."""
    first = outbox.publish(conn, "t", b"\x00\xff", key="k")
    more = outbox.publish_list(conn, [OutboxMessage(topic="t", payload=f"{n}", key=b"k") for n in range(3)])
    assert more == [first + 1, first + 2, first + 3]
    assert rows(migrated) == []
    conn.commit()
    assert [row[1:] for row in rows(migrated)] == [
        ("t", b"k", b"\x00\xff"), ("t", b"k", b"0"), ("t", b"k", b"1"), ("t", b"k", b"2")
    ]  # fmt: skip


def test_an_asynchronous_connection(migrated: str) -> None:
    async def publish() -> int:
        async with await psycopg.AsyncConnection.connect(migrated) as connection:
            assert await outbox.publish_list(connection, [OutboxMessage(topic="t", payload="a")]) == [1]
            return await outbox.publish(connection, "t", "b")

    assert asyncio.run(publish()) == 2
    assert [row[3] for row in rows(migrated)] == [b"a", b"b"]


@pytest.mark.parametrize("kind", ["session", "connection"])
def test_sqlalchemy(migrated: str, kind: str) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(migrated.replace("postgresql://", "postgresql+psycopg://"))
    from sqlalchemy.orm import Session

    with Session(engine) if kind == "session" else engine.connect() as session:
        outbox.publish(session, "t", "rolled back")
        session.rollback()
        outbox.publish(session, "t", "committed")
        session.commit()
    engine.dispose()
    assert [row[3] for row in rows(migrated)] == [b"committed"]


def test_sqlalchemy_asynchronously(migrated: str) -> None:
    pytest.importorskip("sqlalchemy")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async def publish() -> None:
        engine = create_async_engine(migrated.replace("postgresql://", "postgresql+psycopg://"))
        async with AsyncSession(engine) as session:
            await outbox.publish(session, "t", "session")
            await session.commit()
        async with engine.connect() as connection:
            await outbox.publish(connection, "t", "rolled back")
            await connection.rollback()
            await outbox.publish(connection, "t", "connection")
            await connection.commit()
        await engine.dispose()

    asyncio.run(publish())
    assert [row[3] for row in rows(migrated)] == [b"session", b"connection"]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"topic": "a b", "payload": "v"}, "can not be the name of a Kafka topic"),
        ({"topic": "t", "payload": {"a": 1}}, "payload must be bytes or text, not dict"),
        ({"topic": "t", "payload": "v", "key": 1}, "key must be bytes or text, not int"),
        ({"topic": "t", "payload": None}, "a tombstone needs the key"),
        ({"topic": "t", "payload": "v", "headers": {"": "x"}}, "a header's name"),
        ({"topic": "t", "payload": "v", "headers": {"compactory-message-id": "x"}}, "is reserved"),
        ({"topic": "t", "payload": "v", "headers": {"h": 1}}, "header 'h' must be text or bytes"),
        ({"topic": "t", "payload": "v", "headers": [("h", "x")]}, "headers must be a mapping"),
        ({"topic": "t", "payload": "v", "headers": {"h": "\0"}}, "header 'h' has a NUL"),
        ({"topic": "t", "payload": "v", "headers": {"h": "\ud800"}}, "header 'h' has a NUL or characters"),
        ({"topic": "t", "payload": "v", "partition_key": "\0"}, "partition_key has a NUL"),
        ({"topic": "t", "payload": "v", "deliver_at": datetime(2030, 1, 1)}, "deliver_at must be .* with a time zone"),  # noqa: DTZ001
        ({"topic": "t", "payload": "v", "deliver_at": "2030-01-01T00:00:00Z"}, "deliver_at must be a datetime"),
        ({"topic": "t", "payload": "\ud800"}, "payload has characters that UTF-8 can not hold"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_written(conn: psycopg.Connection, message: Any, told: str) -> None:
    with pytest.raises(WriteRefused, match=told):
        outbox.publish_list(conn, [OutboxMessage(**message)])
    conn.execute("SELECT 1")  # the transaction goes on


def test_what_is_no_message_is_told_as_well(conn: psycopg.Connection) -> None:
    with pytest.raises(WriteRefused, match="message 1: must be an OutboxMessage, not str"):
        outbox.publish_list(conn, ["v"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT compactory.publish('a b', 'v')",
        "SELECT compactory.publish(NULL, 'v')",
        "SELECT compactory.publish('t', NULL::bytea)",
        "SELECT compactory.publish('t', 'v', headers => '[1]')",
        """SELECT compactory.publish('t', 'v', headers => '{"a": 1}')""",
        """SELECT compactory.publish('t', 'v', headers => '{"compactory-message-id": "1"}')""",
        """SELECT compactory.publish('t', 'v', headers => '{"a": {"base64": "abc"}}')""",
        """SELECT compactory.publish('t', 'v', headers => '{"a": {"base64": 1234}}')""",
        """SELECT compactory.publish('t', 'v', headers => '{"a": {"text": "v"}}')""",
        "SELECT compactory.publish('t', NULL::jsonb)",
        "SELECT compactory.publish_at('2100-01-01 00:00Z', 'a b', 'v')",
        "SELECT compactory.publish_at('infinity', 't', 'v')",
    ],
)
def test_sql_refuses_the_same(conn: psycopg.Connection, statement: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        conn.execute(statement.encode())
    assert caught.value.diag.message_hint


def test_sql_takes_bytes_and_texts(migrated: str, conn: psycopg.Connection) -> None:
    for given in ("'p', 'k'", "'p'::bytea, 'k'::bytea", "'p'::bytea, 'k'::text", "'p'::text, 'k'::bytea", "NULL, 'k'"):
        conn.execute(f"SELECT compactory.publish('t', {given})".encode())
    conn.commit()
    assert [(row[2], row[3]) for row in rows(migrated)] == [(b"k", b"p")] * 4 + [(b"k", None)]


def test_sql_takes_jsonb(migrated: str, conn: psycopg.Connection) -> None:
    for call in ("publish('t', '{\"b\":1}'::jsonb, 'k')", "publish_at(NULL, 't', jsonb_build_object('b', 1), 'k')"):
        conn.execute(f"SELECT compactory.{call}".encode())
    conn.execute("SELECT compactory.publish('t', 'null'::jsonb), compactory.publish('t', NULL::jsonb, 'k')")
    conn.commit()
    assert [row[2:] for row in rows(migrated)] == [(b"k", b'{"b": 1}')] * 2 + [(None, b"null"), (b"k", None)]


def test_a_time_of_delivery_needs_the_table() -> None:
    message = OutboxMessage(topic="t", payload="v", deliver_at=datetime(2100, 1, 1, tzinfo=UTC))
    with pytest.raises(WriteRefused, match="deliver_at needs the outbox in the database"):
        Outbox("kafka", kafka="127.0.0.1:1").publish_list(None, [message])


def test_sql_takes_base64_as_postgres_writes_it(conn: psycopg.Connection) -> None:
    """With a line break after 76 characters."""
    given = "jsonb_build_object('h', jsonb_build_object('base64', encode(decode(repeat('ff', 100), 'hex'), 'base64')))"
    conn.execute(f"SELECT compactory.publish('t', 'v', headers => {given})".encode())
    [headers] = conn.execute("SELECT headers FROM compactory.kafka_messages").fetchall()
    assert headers_of(headers[0]) == [("h", b"\xff" * 100)]


def test_autocommit_without_a_transaction_is_refused(migrated: str) -> None:
    with psycopg.connect(migrated, autocommit=True) as connection:
        with pytest.raises(WriteRefused, match=r"with conn.transaction\(\)"):
            outbox.publish(connection, "t", "v")
        with connection.transaction():
            assert outbox.publish(connection, "t", "v")


def test_a_warning_where_nobody_has_asked_how_much_a_topic_takes(conn: psycopg.Connection) -> None:
    said: list[str] = []
    conn.add_notice_handler(lambda notice: said.append(str(notice.message_primary)))
    outbox.publish(conn, "t", b"x" * 1_100_000)
    assert "may be too large for topic t: no relay has asked yet" in said[0]


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown backend 'kafkaa': choose db, kafka, kafka_async"):
        Outbox("kafkaa")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs kafka="):
        Outbox("kafka")
    with pytest.raises(ConfigError, match="threads must be at least 1"):
        OutboxRelay("postgresql://nowhere/none", "localhost:1", threads=0)
    with pytest.raises(ConfigError, match="batch must be at most 100,000"):
        OutboxRelay("postgresql://nowhere/none", "localhost:1", batch=1_000_000)
    with pytest.raises(ConfigError, match="needs a connection of psycopg"):
        outbox.publish(object(), "t", "v")


def test_missing_migrations_are_told(database: str, kafka: str) -> None:
    with pytest.raises(ConfigError, match="compactory sql install"):
        OutboxRelay(database, kafka).start()
    with psycopg.connect(database) as conn, pytest.raises(ConfigError, match=r"has no outbox.*compactory sql install"):
        outbox.publish(conn, "t", "v")


def test_an_asynchronous_connection_is_told_the_same(database: str) -> None:
    async def publish() -> None:
        async with await psycopg.AsyncConnection.connect(database) as connection:
            await outbox.publish(connection, "t", "v")

    with pytest.raises(ConfigError, match="has no outbox"):
        asyncio.run(publish())


@pytest.mark.parametrize("backend", ["kafka", "kafka_async"])
def test_other_backends_send_by_the_same_call(kafka: str, unique: Any, backend: Any) -> None:
    topic = unique("direct")
    Kafka(kafka).create_topic(topic, partitions=1)
    own = Outbox(backend, kafka=kafka)
    assert own.publish(None, topic, "v", key="k", headers={"h": b"x"}) == 0
    own.close()
    (message,) = read(Kafka(kafka), topic)
    assert (message.key(), message.value(), dict(message.headers())["h"]) == (b"k", b"v", b"x")


DEIMOS = """
CREATE TABLE kafka_messages (id bigserial PRIMARY KEY, topic varchar NOT NULL, message bytea, key bytea,
                             partition_key varchar, created_at timestamp, updated_at timestamp);
INSERT INTO kafka_messages (topic, message, key, partition_key)
SELECT 't', n::text::bytea, 'k', 'k' FROM generate_series(0, 2) AS n;
"""


def test_moving_over_from_deimos_as_the_page_says(migrated: str) -> None:
    page = (Path(__file__).parents[2] / "docs/outbox.md").read_text()
    (script,) = re.findall(r"```sql\n(BEGIN;\nLOCK TABLE kafka_messages.*?)```", page, re.DOTALL)
    with psycopg.connect(migrated, autocommit=True) as connection:
        connection.execute(DEIMOS)
        connection.execute(script.encode())
        connection.execute("INSERT INTO kafka_messages (topic, message, key) VALUES ('t', '3', 'k'), ('t', NULL, 'k')")
        assert connection.execute("SELECT count(*) FROM kafka_messages").fetchone() == (0,)
    assert [row[1:] for row in rows(migrated)] == [("t", b"k", value) for value in (b"0", b"1", b"2", b"3", None)]


IMPATIENT = {"message.timeout.ms": 500, "topic.metadata.propagation.max.ms": 200, "log_level": 0}


def test_what_kafka_does_not_take_is_told_by_its_topic(kafka: str, unique: Any) -> None:
    topic = unique("small")
    Kafka(kafka).create_topic(topic, partitions=1, config={"max.message.bytes": "2000"})
    own = Outbox("kafka", kafka={"bootstrap.servers": kafka, **IMPATIENT})
    wrong = OutboxMessage(topic="absent", payload="v")
    with pytest.raises(CompactoryError, match=r"1 of 2 messages, the first for topic 'absent'.*Unknown topic"):
        own.publish_list(None, [OutboxMessage(topic=topic, payload="v"), wrong])
    with pytest.raises(CompactoryError, match=rf"topic '{topic}'.*Message size too large"):
        own.publish(None, topic, random.Random(1).randbytes(5000))
    assert [message.value() for message in read(Kafka(kafka), topic)] == [b"v"]
    away = Outbox("kafka", kafka={"bootstrap.servers": f"127.0.0.1:{free_port()}", **IMPATIENT})
    with pytest.raises(Unreachable, match=rf"did not acknowledge 1 of 1 messages, the first for topic '{topic}'"):
        away.publish(None, topic, "v")


def test_a_queue_that_is_full_is_told() -> None:
    away = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "queue.buffering.max.messages": 2, **IMPATIENT}
    own = Outbox("kafka_async", kafka=away)
    with pytest.raises(Unreachable, match="queue stays full"):
        own.publish_list(None, [OutboxMessage(topic="t", payload="v")] * 3)


def test_an_event_loop_goes_on_while_kafka_is_waited_for(migrated: str) -> None:
    own = Outbox("kafka", kafka={"bootstrap.servers": f"127.0.0.1:{free_port()}", **IMPATIENT})

    async def publish() -> int:
        async with await psycopg.AsyncConnection.connect(migrated) as connection:
            waiting = asyncio.ensure_future(own.publish(connection, "t", "v"))
            turns = 0
            while not waiting.done():
                await asyncio.sleep(0.01)
                turns += 1
            with pytest.raises(Unreachable):
                await waiting
            return turns

    assert asyncio.run(publish()) > 3
