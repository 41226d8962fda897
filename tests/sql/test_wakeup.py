"""NOTIFY is sent only while a source sleeps, that is holds the exclusive lock."""

from __future__ import annotations

import psycopg
import pytest

import compactory_sql
from compactory_connectors.schema import adopt

from .conftest import REGIONS, one

WRITE = "UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE terminal_id = 'T1'"


def key(connection: psycopg.Connection, table: str) -> tuple[int, int]:
    oid = one(connection, "SELECT %s::regclass::oid::int8::bit(32)::int4", table)
    return compactory_sql.WAKEUP_LOCK_CLASS, oid


def heard(connection: psycopg.Connection) -> list[str]:
    return [notify.payload for notify in connection.notifies(timeout=0.2)]


@pytest.fixture
def source(connect) -> psycopg.Connection:
    connection = connect()
    connection.execute(f"LISTEN {compactory_sql.WAKEUP_CHANNEL}")
    return connection


def test_a_writer_notifies_while_the_source_sleeps_and_only_then(
    adopted: psycopg.Connection, source: psycopg.Connection
):
    oid = str(one(adopted, "SELECT 'terminal_acquirer'::regclass::oid::text"))
    adopted.execute(WRITE)
    assert heard(source) == []
    assert one(source, "SELECT pg_try_advisory_lock(%s, %s)", *key(source, "terminal_acquirer"))
    with adopted.transaction():
        adopted.execute(WRITE)
        adopted.execute(WRITE)
    assert heard(source) == [oid]
    adopted.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('N', 'A')")
    adopted.execute("UPDATE terminal_acquirer SET is_active = false")
    adopted.execute("DELETE FROM terminal_acquirer WHERE terminal_id = 'N'")
    adopted.execute("TRUNCATE terminal_acquirer")
    assert heard(source) == [oid] * 4
    source.execute("SELECT pg_advisory_unlock_all()")
    adopted.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('N', 'A')")
    assert heard(source) == []


def test_a_source_can_not_fall_asleep_while_a_writer_is_at_work(
    adopted: psycopg.Connection, source: psycopg.Connection, connect
):
    """So no commit falls between the last poll and the sleep: either it is seen by the poll or it notifies."""
    writer = connect(autocommit=False)
    writer.execute(WRITE)
    assert not one(source, "SELECT pg_try_advisory_lock(%s, %s)", *key(source, "terminal_acquirer"))
    writer.commit()
    assert one(source, "SELECT pg_try_advisory_lock(%s, %s)", *key(source, "terminal_acquirer"))


def test_other_tables_do_not_wake_the_source(adopted: psycopg.Connection, source: psycopg.Connection):
    source.execute("SELECT pg_advisory_lock(%s, %s)", [compactory_sql.WAKEUP_LOCK_CLASS, 1])
    adopted.execute(WRITE)
    assert heard(source) == []


@pytest.mark.parametrize("target", ["terminal_region", "region_bc", "region_b"])
def test_a_statement_on_any_partition_wakes_the_source_of_the_root(
    regions: psycopg.Connection, source: psycopg.Connection, target: str
):
    adopt(regions, REGIONS)
    source.execute("SELECT pg_advisory_lock(%s, %s)", key(source, "terminal_region"))
    regions.execute(f"UPDATE {target} SET acquirer_id = 'B'")
    assert heard(source) == [one(regions, "SELECT 'terminal_region'::regclass::oid::text")]
