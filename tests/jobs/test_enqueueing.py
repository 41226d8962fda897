"""Enqueueing by every way there is, psycopg, asyncio, SQLAlchemy, SQL; and what is refused in the transaction."""

from __future__ import annotations

import asyncio
import math
from datetime import datetime

import psycopg
import pytest
import sqlalchemy
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from compactory.errors import ConfigError, WriteRefused
from compactory_connectors.jobs import Jobs, NewJob
from compactory_connectors.kafka.partitioner import murmur2


class Invoice(BaseModel):
    """A payload."""

    number: int
    secret: str = "none"


class Parcel(BaseModel):
    """Another one."""

    weight: float


@pytest.fixture
def jobs() -> Jobs:
    made = Jobs()
    made.handler("invoice.send")(lambda job: None)
    made.declare("typed", Invoice)
    made.declare("weighed", Parcel)
    return made


def types(url: str) -> list[str]:
    with psycopg.connect(url) as conn:
        return [row[0] for row in conn.execute("SELECT type FROM compactory.jobs ORDER BY id")]


def test_every_kind_of_connection_joins_its_transaction(migrated: str, jobs: Jobs) -> None:
    """Guarantee 14: the connection is an argument, and is never committed by us."""
    with psycopg.connect(migrated) as conn:
        jobs.enqueue(conn, "invoice.send")
        conn.rollback()
        jobs.enqueue(conn, "invoice.send")
    engine = sqlalchemy.create_engine(migrated.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session:
        jobs.enqueue(session, "invoice.send")
        session.commit()
        jobs.enqueue(session, "invoice.send")
    engine.dispose()

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(migrated) as conn:
            assert await jobs.enqueue(conn, "invoice.send") > 0
            assert len(await jobs.enqueue_many(conn, [NewJob(type="invoice.send")] * 3)) == 3
        made = create_async_engine(migrated.replace("postgresql://", "postgresql+psycopg://"))
        async with made.begin() as connection:
            await jobs.enqueue(connection, "invoice.send")
        await made.dispose()

    asyncio.run(main())
    assert len(types(migrated)) == 2 + 4 + 1


def test_ids_come_back_in_order(conn: psycopg.Connection, jobs: Jobs) -> None:
    ids = jobs.enqueue_many(conn, [NewJob(type="invoice.send", payload={"n": n}) for n in range(500)])
    assert ids == sorted(ids)
    found = conn.execute("SELECT (payload ->> 'n')::int FROM compactory.jobs ORDER BY id").fetchall()
    assert [row[0] for row in found] == list(range(500))
    again = [NewJob(type="invoice.send", unique_key=key) for key in ("a", "b", "a", None)]
    first, second, third, fourth = jobs.enqueue_many(conn, again)
    assert first == third
    assert len({first, second, fourth}) == 3


def test_sql_and_python_agree_on_the_partition_of_an_origin(conn: psycopg.Connection, jobs: Jobs) -> None:
    origins = ["", "T", "T1", "T12", "T123", "T1234", "käsi", "x" * 100]
    for origin in origins:
        jobs.enqueue(conn, "invoice.send", origin=origin)
        conn.execute("SELECT compactory.enqueue('invoice.send', origin => %s)", [origin])
    places = [row[0] for row in conn.execute("SELECT place FROM compactory.jobs ORDER BY id")]
    expected = [murmur2(origin.encode()) & 0x7FFFFFFF for origin in origins]
    assert (places[::2], places[1::2]) == (expected, expected)


def test_what_does_not_fit_fails_in_the_callers_transaction_all_at_once(conn: psycopg.Connection, jobs: Jobs) -> None:
    with pytest.raises(WriteRefused) as refused:
        jobs.enqueue_many(
            conn,
            [
                NewJob(type="invoice.sent"),
                NewJob(type="typed", payload={"number": "x", "secret": "s3cret"}),
                NewJob(type="invoice.send", last_only=True),
                NewJob(type="invoice.send", run_at=datetime(2030, 1, 1)),  # noqa: DTZ001
                NewJob(type="invoice.send", payload=object()),
                NewJob(type="invoice.send", payload={"text": "\\\0"}),
                NewJob(type="invoice.send", run_at="now"),  # type: ignore[arg-type]
                NewJob(type="invoice.send", payload={"total": math.nan}),
                NewJob(type="weighed", payload={"weight": math.inf}),
            ],
        )
    text = str(refused.value)
    for part in (
        "job 1: unknown type 'invoice.sent': did you mean 'invoice.send'?",
        "job 2: payload of job 'typed' does not fit: number: int_parsing",
        "job 3: 'invoice.send' is last_only and has no group",
        "job 4: run_at of 'invoice.send' has no time zone",
        "job 5: payload of job 'invoice.send' is no JSON",
        "job 6: payload of job 'invoice.send' has the character NUL",
        "job 7: run_at of 'invoice.send' has no time zone",
        "job 8: payload of job 'invoice.send' is no JSON",
        "job 9: payload of job 'weighed' does not fit: weight: float_type",
    ):
        assert part in text
    assert "s3cret" not in text
    with pytest.raises(WriteRefused, match="groups: Postgres can't hold the character NUL"):
        jobs.enqueue(conn, "invoice.send", group="g\0")
    jobs.enqueue(conn, "invoice.send", {"text": "\\u0000"})
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="last_only and has no group"):
        conn.execute("SELECT compactory.enqueue('a', last_only => true)")
    conn.rollback()
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="needs a type"):
        conn.execute("SELECT compactory.enqueue('')")


def test_connections_that_would_commit_nothing_are_refused(migrated: str, jobs: Jobs) -> None:
    with psycopg.connect(migrated, autocommit=True) as conn, pytest.raises(WriteRefused, match="autocommit"):
        jobs.enqueue(conn, "invoice.send")
    with pytest.raises(ConfigError, match="enqueue needs a connection of psycopg"):
        jobs.enqueue(object(), "invoice.send")


def test_a_database_without_jobs_is_told_with_the_remedy(database: str, jobs: Jobs) -> None:
    lacks = r"has no jobs, or an older one: `compactory sql install` adds it"

    async def enqueue() -> None:
        async with await psycopg.AsyncConnection.connect(database) as awaited:
            await jobs.enqueue(awaited, "invoice.send")

    with psycopg.connect(database) as conn, pytest.raises(ConfigError, match=lacks):
        jobs.enqueue(conn, "invoice.send")
    with pytest.raises(ConfigError, match=lacks):
        asyncio.run(enqueue())


def test_tenant_and_trace_travel_along(conn: psycopg.Connection, jobs: Jobs) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    with TracerProvider().get_tracer("test").start_as_current_span("request") as span:
        jobs.enqueue(conn, "invoice.send", tenant="acme")
    (headers,) = conn.execute("SELECT headers FROM compactory.jobs").fetchone() or ({},)
    assert headers["tenant"] == "acme"
    assert headers["traceparent"].split("-")[1] == f"{span.get_span_context().trace_id:032x}"
