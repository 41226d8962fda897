"""What happens to a table behind a reader's back: rewrites, disabled triggers, crashed backends, odd keys and names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from compactory_connectors.connect.record.record import RowError
from compactory_connectors.source.postgres.poll_transaction import TableReplaced
from tests.source.harness import BY_VALUE, Feed, add, expected
from tests.source.workload import wait_until

REWRITE = "ALTER TABLE terminal_acquirer ALTER COLUMN acquirer_id TYPE text USING acquirer_id || ''"
WAITING = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'compactory-source' AND wait_event_type = 'Lock'"


@contextmanager
def blocked(database: str, sql: psycopg.Connection, statement: str, action: Callable[[], object]) -> Iterator[None]:
    """Run the action while another transaction has executed the statement and not committed; it commits at the end."""
    with psycopg.connect(database) as other:
        other.execute(statement)
        thread = threading.Thread(target=action)
        thread.start()
        wait_until(lambda: sql.execute(WAITING).fetchone(), what="a wait for the lock")
        yield
        other.commit()
    thread.join(30)
    assert not thread.is_alive()


def test_a_rewrite_while_a_poll_waits_for_the_table_hides_nothing(
    database: str, sql: psycopg.Connection, feed: Feed
) -> None:
    """Guarantee 8: a rewritten table looks empty to older snapshots, and its rows keep their old stamps."""
    add(sql, "T1")
    feed.poll()
    add(sql, "T2")
    with blocked(database, sql, REWRITE, feed.poll_until_replaced):
        pass
    feed.restart()
    feed.poll()
    assert feed.topic == expected(database)


def test_a_rewrite_while_a_sweep_waits_for_the_table_removes_nothing(
    database: str, sql: psycopg.Connection, feed: Feed
) -> None:
    """Guarantee 13: an older snapshot shows a rewritten table as empty, and every key as vanished."""
    add(sql, "T1", "T2")
    feed.poll()
    living = []
    with blocked(database, sql, REWRITE, lambda: living.extend(feed.living())):
        pass
    assert sorted(living) == [b"1", b"2"]


@pytest.mark.parametrize("adopted", ["adopted"], indirect=True)
@pytest.mark.parametrize("restarted", [False, True])
def test_changes_under_disabled_triggers_are_sent(
    database: str, sql: psycopg.Connection, feed: Feed, restarted: bool
) -> None:
    """Guarantee 8: rows without a new stamp; the triggers are on again before the next poll."""
    add(sql, "T1", "T2")
    feed.poll()
    with sql.transaction():
        sql.execute("ALTER TABLE terminal_acquirer DISABLE TRIGGER ALL")
        sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'unstamped' WHERE id = 1")
        sql.execute("ALTER TABLE terminal_acquirer ENABLE TRIGGER ALL")
    if restarted:
        feed.restart()
    feed.poll_until_replaced()
    feed.restart()
    feed.poll()
    assert feed.topic == expected(database)
    add(sql, "T3")
    feed.poll()
    assert feed.topic == expected(database)
    assert len(feed.sent) <= 5


@pytest.mark.parametrize("adopted", ["adopted"], indirect=True)
def test_stamps_that_a_dump_brought_along_do_not_look_new_at_every_poll(
    database: str, sql: psycopg.Connection, feed: Feed
) -> None:
    """Guarantee 9: they are ids of the server that the dump was made on, which this one has yet to give."""
    add(sql, "T1", "T2", "T3")
    with sql.transaction():
        sql.execute("ALTER TABLE terminal_acquirer DISABLE TRIGGER ALL")
        sql.execute("UPDATE terminal_acquirer SET updated_xid = (pg_current_xact_id()::text::int8 + 3)::text::xid8")
        sql.execute("ALTER TABLE terminal_acquirer ENABLE TRIGGER ALL")
    feed.restart()
    assert len(feed.poll()) == 3
    assert feed.poll() == []
    sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 1")
    assert len(feed.poll()) == 1
    for number in range(6):
        sql.execute("UPDATE terminal_acquirer SET acquirer_id = %s WHERE id = 2", [f"B{number}"])
        feed.poll()
    assert feed.topic == expected(database)
    assert len(feed.sent) <= 3 + 1 + 6 + 3


@pytest.mark.parametrize("adopted", ["adopted"], indirect=True)
def test_a_table_that_is_not_adopted_any_more(database: str, sql: psycopg.Connection, feed: Feed) -> None:
    """Guarantee 8: a running reader notices that its stamps are not written."""
    add(sql, "T1")
    feed.poll()
    sql.execute("DROP TRIGGER zz_xid ON terminal_acquirer")
    sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'unstamped'")
    feed.poll_until_replaced()
    feed._adopted = False
    feed.restart()
    feed.poll()
    assert feed.topic == expected(database)


def test_a_retyped_column_is_not_rendered_by_the_old_plan(sql: psycopg.Connection, feed: Feed) -> None:
    add(sql, "T1")
    feed.poll()
    sql.execute("ALTER TABLE terminal_acquirer ALTER COLUMN acquirer_id TYPE bytea USING acquirer_id::bytea")
    with pytest.raises(TableReplaced):
        feed.poll()


def test_a_page_border_among_rows_without_a_timestamp(database: str, sql: psycopg.Connection, feed: Feed) -> None:
    """Guarantee 9: validate.non.null=false lets such rows through; they come last."""
    sql.execute("ALTER TABLE terminal_acquirer ALTER COLUMN updated_date DROP NOT NULL")
    feed.restart()
    add(sql, *(f"T{number}" for number in range(4)))
    sql.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id, updated_date)"
                " SELECT 'N' || n, 'A', NULL FROM generate_series(1, 10) n")  # fmt: skip
    feed.poll(page_rows=3, pages=3)
    feed.restart()
    feed.poll(page_rows=3)
    assert feed.topic == expected(database)
    assert len(feed.sent) == 14


def test_an_incrementing_column_with_a_fraction_is_refused(sql: psycopg.Connection, feed: Feed) -> None:
    """The real connector refuses it too; a ValueError would end the source with a traceback."""
    sql.execute(
        "ALTER TABLE terminal_acquirer ALTER COLUMN id DROP IDENTITY;"
        " ALTER TABLE terminal_acquirer ALTER COLUMN id TYPE numeric(10, 2)"
    )
    sql.execute("INSERT INTO terminal_acquirer (id, terminal_id, acquirer_id) VALUES (1.5, 'T1', 'A')")
    feed.restart()
    with pytest.raises(RowError, match="id"):
        feed.poll()


def test_names_that_look_like_placeholders(database: str, sql: psycopg.Connection, adopted: bool) -> None:
    name = '100% {odd} "%s"'
    sql.execute('ALTER TABLE terminal_acquirer RENAME TO "100% {odd} ""%s"""')
    feed = Feed(database, adopted=adopted, table=name)
    sql.execute('INSERT INTO "100% {odd} ""%s""" (terminal_id, acquirer_id)'
                " SELECT 'T' || n, 'A' FROM generate_series(1, 10) n")  # fmt: skip
    feed.poll(page_rows=3, pages=2)
    feed.restart()
    feed.poll(page_rows=3)
    assert len(feed.topic) == 10
    feed.close()


@pytest.mark.parametrize("value", ["1.0", None])
def test_a_key_lives_when_its_bytes_do(
    database: str, sql: psycopg.Connection, adopted: bool, value: str | None
) -> None:
    """Guarantee 10: 1.00 equals 1.0 for Postgres and is another key for Kafka; NULL equals nothing and is one key."""
    sql.execute("ALTER TABLE terminal_acquirer ALTER COLUMN terminal_id DROP NOT NULL,"
                " ALTER COLUMN terminal_id TYPE numeric USING terminal_id::numeric")  # fmt: skip
    feed = Feed(database, key="terminal_id", adopted=adopted, key_types=("numeric",))
    add(sql, value)
    feed.poll()
    with sql.transaction():
        sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id = 1")
        add(sql, "1.00" if value else None)
    feed.poll()
    assert feed.topic == ({b"1.00": b"2|1.00|A|t"} if value else {b"null": b"2||A|t"})
    feed.close()


def test_a_sweep_keeps_deactivated_rows_that_are_sent_as_values(
    database: str, sql: psycopg.Connection, adopted: bool
) -> None:
    feed = Feed(database, adopted=adopted, connector=BY_VALUE)
    add(sql, "T1")
    add(sql, "T2", active=False)
    assert sorted(feed.living()) == [b"1", b"2"]
    feed.close()


def test_the_rows_of_an_attached_partition_are_sent_and_a_detached_ones_swept(
    database: str, sql: psycopg.Connection, adopted: bool
) -> None:
    """Guarantee 8: rows that were committed long before they became the table's."""
    sql.execute("ALTER TABLE terminal_acquirer RENAME TO plain")
    sql.execute("CREATE TABLE terminal_acquirer (LIKE plain INCLUDING DEFAULTS) PARTITION BY RANGE (id)")
    sql.execute("CREATE TABLE low PARTITION OF terminal_acquirer FOR VALUES FROM (1) TO (100)")
    sql.execute("CREATE TABLE high (LIKE terminal_acquirer INCLUDING DEFAULTS)")
    if adopted:
        stamp = "BEFORE INSERT OR UPDATE ON terminal_acquirer FOR EACH ROW EXECUTE FUNCTION stamp_xid()"
        sql.execute(f"CREATE TRIGGER zz_xid {stamp}")
    columns = "(id, terminal_id, acquirer_id)"
    sql.execute(f"INSERT INTO high {columns} SELECT n, 'T' || n, 'A' FROM generate_series(100, 120) n")
    sql.execute(f"INSERT INTO terminal_acquirer {columns} VALUES (1, 'T1', 'A')")
    feed = Feed(database, adopted=adopted)
    feed.poll()
    sql.execute("ALTER TABLE terminal_acquirer ATTACH PARTITION high FOR VALUES FROM (100) TO (200)")
    sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id IN (1, 110)")
    feed.restart()
    feed.poll(page_rows=5, pages=2)
    feed.restart()
    feed.poll(page_rows=5)
    assert feed.topic == expected(database)
    assert len(feed.sent) == 23
    sql.execute("ALTER TABLE terminal_acquirer DETACH PARTITION high")
    feed.restart()
    feed.poll()
    assert feed.reader.offset.sweep
    feed.close()
