"""Polls of one table against a real Postgres, without Kafka: what is sent, in which order, what a restart repeats."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator

import psycopg
import pytest

from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.postgres.snapshot import Snapshot
from compactory_connectors.source.offsets.offset_parts import SeenSnapshot
from compactory_connectors.source.polling.table_reader import _is_too_old
from compactory_connectors.source.postgres.poll_transaction import PollSnapshot, TableReplaced
from tests.source.harness import BY_VALUE, STAMP, Feed, add, expected
from tests.source.workload import TERMINALS, PlainCursor, Writers, table_state, wait_until
from tests.stack.postgres_copies import new_server


@pytest.fixture
def postgres_crashing() -> Iterator[PostgresServer]:
    """A server of its own, whose WAL writer is slow, to be killed."""
    server = new_server(settings={"fsync": "off", "wal_writer_delay": "10s", "autovacuum": "off"})
    server.start()
    yield server
    server.remove()


def test_a_late_commit_is_sent(database: str, sql: psycopg.Connection, feed: Feed) -> None:
    """Guarantee 8: a row stamped and numbered before others, but committed after them."""
    with psycopg.connect(database) as late:
        late.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('late', 'A')")
        add(sql, "early")
        assert [key for key, _ in feed.poll()] == [b"2"]
        late.commit()
    assert [key for key, _ in feed.poll()] == [b"1"]
    assert feed.poll() == []


def test_savepoints_of_an_open_transaction_are_sent_once_it_commits(
    database: str, sql: psycopg.Connection, feed: Feed
) -> None:
    """Guarantee 8: a row's xmin is the savepoint's id, which no snapshot lists."""
    with psycopg.connect(database) as late:
        late.execute("SELECT pg_current_xact_id()")
        with late.transaction():
            add(late, "inside")
        other = add(sql, "other")
        feed.poll()
        feed.restart()
        assert feed.topic.keys() == {str(other[0]).encode()}
        with late.transaction():
            add(late, "second")
        assert feed.poll() == []
        late.commit()
    feed.poll()
    assert feed.topic == expected(database)
    assert len(feed.sent) == 3


def test_prepared_transactions(database: str, sql: psycopg.Connection, feed: Feed) -> None:
    with psycopg.connect(database) as late:
        late.tpc_begin(late.xid(1, "prepared", "row"))
        add(late, "prepared")
        late.tpc_prepare()
        add(sql, "other")
        feed.poll()
        late.tpc_commit()
    feed.poll()
    assert feed.topic == expected(database)
    assert len(feed.sent) == 2


def test_equal_timestamps_over_page_borders(database: str, sql: psycopg.Connection, feed: Feed) -> None:
    sql.execute(
        "INSERT INTO terminal_acquirer (terminal_id, acquirer_id) SELECT 'T' || n, 'A' FROM generate_series(1, 1001) n"
    )
    assert len(feed.poll(page_rows=100)) == 1001
    assert feed.topic == expected(database)


@pytest.mark.parametrize("pages", [1, 2, 5])
def test_a_poll_cut_off_between_pages_goes_on_without_repeating(
    database: str, sql: psycopg.Connection, feed: Feed, pages: int
) -> None:
    """Guarantee 9: what a killed source had committed is neither lost nor sent again, changes meanwhile included."""
    add(sql, *(f"T{number}" for number in range(50)))
    feed.poll(page_rows=7, pages=pages)
    sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id IN (1, 50)")
    add(sql, "new")
    feed.restart()
    feed.poll(page_rows=7, pages=1)
    feed.restart()
    feed.poll(page_rows=7)
    assert feed.topic == expected(database)
    assert len(feed.sent) == 52
    feed.restart()
    assert feed.poll() == []


def test_a_row_before_the_cut_that_changed_is_sent_again(database: str, sql: psycopg.Connection, adopted: bool) -> None:
    """Guarantee 8: its place is among the rows sent before, for nothing moves its timestamp."""
    sql.execute("DROP TRIGGER stamp ON terminal_acquirer")
    feed = Feed(database, adopted=adopted)
    add(sql, *(f"T{number}" for number in range(10)))
    feed.poll(page_rows=3, pages=2)
    sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 1")
    feed.restart()
    feed.poll(page_rows=3)
    assert feed.topic == expected(database)
    assert len(feed.sent) == 11
    feed.close()


def test_deactivation_is_a_tombstone_after_the_active_rows(sql: psycopg.Connection, feed: Feed) -> None:
    """Guarantee 10, and no gap for a lookup: the successor goes out before the deactivation."""
    add(sql, "T1")
    feed.poll()
    with sql.transaction():
        sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id = 1")
        add(sql, "T1")
    assert feed.poll() == [(b"2", b"2|T1|A|t"), (b"1", None)]


def test_deactivation_as_a_value(database: str, sql: psycopg.Connection, adopted: bool) -> None:
    feed = Feed(database, adopted=adopted, connector=BY_VALUE)
    add(sql, "T1", active=False)
    assert feed.poll() == [(b"1", b"1|T1|A|f")]
    feed.close()


def test_an_active_row_wins_over_deletes_of_its_natural_key(
    database: str, sql: psycopg.Connection, adopted: bool
) -> None:
    """Guarantee 10: neither the change of key owner nor later edits of the old row remove the living entry."""
    feed = Feed(database, key="terminal_id", adopted=adopted)
    add(sql, "T1")
    feed.poll()
    with sql.transaction():
        sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id = 1")
        add(sql, "T1")
    assert feed.poll() == [(b"T1", b"2|T1|A|t")]
    sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'edited' WHERE id = 1")
    assert feed.poll() == []
    sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id = 2")
    assert feed.poll() == [(b"T1", None)]
    feed.close()


@pytest.mark.parametrize("adopted", ["adopted"], indirect=True)
def test_hard_deletes_of_an_adopted_table(database: str, sql: psycopg.Connection, feed: Feed) -> None:
    """Guarantee 10: logged deletes become tombstones unless the key lives again; paging and restarts included."""
    add(sql, *(f"T{number}" for number in range(20)))
    feed.poll()
    sql.execute("DELETE FROM terminal_acquirer WHERE id <= 10")
    sql.execute("INSERT INTO terminal_acquirer (id, terminal_id, acquirer_id) VALUES (3, 'again', 'A')")
    feed.poll(page_rows=4, pages=2)
    feed.restart()
    feed.poll(page_rows=4)
    assert feed.topic == expected(database)
    assert len(feed.sent) == 20 + 1 + 9
    feed.restart()
    assert feed.poll() == []


@pytest.mark.parametrize("adopted", ["xmin"], indirect=True)
def test_a_table_adopted_between_two_sessions(database: str, sql: psycopg.Connection) -> None:
    """The change from xmin to updated_xid sends nothing twice and loses nothing; the way back may only repeat."""
    feed = Feed(database, adopted=False)
    add(sql, "T1", "T2")
    feed.poll()
    sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 1")
    sql.execute(STAMP)
    sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'C' WHERE id = 2")
    feed._adopted = True
    feed.restart()
    feed.poll()
    sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'D' WHERE id = 2")
    feed.poll()
    assert feed.topic == expected(database)
    feed._adopted = False
    feed.restart()
    add(sql, "T3")
    feed.poll()
    assert feed.topic == expected(database)
    feed.close()


def test_dropped_and_recreated_table_is_noticed_and_loaded_afresh(
    database: str, sql: psycopg.Connection, feed: Feed, adopted: bool
) -> None:
    add(sql, "T1", "T2")
    feed.poll()
    sql.execute("DROP TABLE terminal_acquirer; DROP FUNCTION stamp()")
    sql.execute(TERMINALS)
    if adopted:
        sql.execute("DROP SCHEMA compactory CASCADE; DROP FUNCTION stamp_xid(), log_delete()")
        sql.execute(STAMP)
    add(sql, "new")
    with pytest.raises(TableReplaced):
        feed.poll()
    feed.restart()
    feed.poll()
    assert feed.reader.offset.sweep
    assert feed.topic[b"1"] == b"1|new|A|t"


def test_unflushed_horizon_is_not_durable(sql: psycopg.Connection, feed: Feed) -> None:
    """Guarantee 8: after a crash the source goes back to what the server's WAL had on disk."""
    seen_snapshots = [SeenSnapshot(Snapshot(number, number)) for number in (10, 20, 30)]
    offset = feed.reader.offset
    for number, (seen_snapshot, flushed) in enumerate(zip(seen_snapshots, (5, 100, 250), strict=True), 1):
        at = PollSnapshot(seen_snapshot.snapshot, written=number * 100, flushed=flushed, shape="", partitions=())
        offset = feed.reader._offset_builder.cover(offset, at, [], None, set())
        durable = offset.durable.snapshot if offset.durable else None
        assert durable == (None if number == 1 else seen_snapshots[number - 2].snapshot)


@pytest.mark.parametrize("victim", ["server", "backend"])
def test_a_crashed_server_sends_the_source_back(postgres_crashing: PostgresServer, victim: str) -> None:
    """Guarantee 8: ids that a crash gave out twice do not hide the second use of them.

    After the crash of a backend the server recovers as well, and its start time stays the same.
    """
    url = postgres_crashing.url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TERMINALS)
        add(connection, "T1")
        feed = Feed(url)
        feed.poll()
        add(connection, "T2")
    lost = psycopg.connect(url)  # uses up ids that never reach the disk
    for number in range(50):
        add(lost, f"lost {number}")
        lost.rollback()
    feed.poll()
    before = feed.seen_snapshot
    feed.close()
    if victim == "server":
        postgres_crashing.kill()
        postgres_crashing.start()
    else:
        with psycopg.connect(url, autocommit=True) as witness:
            os.kill(lost.info.backend_pid, signal.SIGKILL)
            wait_until(lambda: _is_cut_off(witness), what="the end of all connections")
        wait_until(lambda: _answers(url), what="the end of crash recovery")
    lost.close()
    with psycopg.connect(url, autocommit=True) as connection:
        numbers = [add(connection, f"after {number}")[0] for number in range(80)]
        again = connection.execute("SELECT min(xmin::text::int8) FROM terminal_acquirer WHERE id = %s", numbers[:1])
        reused = again.fetchone()[0] < before.snapshot.xmax
    assert reused, "the crash took no transaction id back"
    feed.restart()
    feed.poll()
    assert feed.topic == expected(url)
    feed.close()


def _is_cut_off(connection: psycopg.Connection) -> bool:
    """Whether the postmaster has ended this connection, as it ends all of them after the crash of another."""
    try:
        connection.execute("SELECT")
    except psycopg.OperationalError:
        return True
    return False


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_horizon_too_far_back_for_32_bit_ids_is_not_used() -> None:
    """Guarantee 8: beyond 2³¹ transactions an old xmin looks like a new one."""
    seen_snapshot = SeenSnapshot(Snapshot(1000, 1000))
    assert not _is_too_old(seen_snapshot, Snapshot(1 << 30, 1 << 30))
    assert _is_too_old(seen_snapshot, Snapshot(1 << 31, 1 << 31))


def test_histories_with_restarts(database: str, sql: psycopg.Connection, feed: Feed, seeded: random.Random) -> None:
    """Guarantees 8 and 9 in the small: a random history with restarts anywhere; nothing lost, nothing sent twice."""
    add(sql, *(f"T{number}" for number in range(300)))
    writers, cursor = Writers(database, seeded), PlainCursor(database)
    with cursor.polling(), writers.writing():
        while writers.commits < 1500:
            feed.poll(page_rows=seeded.choice([3, 50, 10_000]), pages=seeded.choice([1, None]))
            if seeded.random() < 0.1:
                feed.restart()
    feed.restart()
    feed.poll()
    assert feed.topic == expected(database)
    values = [value for _, value in feed.sent if value is not None and b"|new|" not in value]
    again = len(values) - len(set(values))
    assert again <= len(feed.sent) // 100, f"{again} of {len(feed.sent)} records were sent twice"
    state = table_state(database)
    lost = [number for number in state if cursor.state.get(number) != state[number]]
    assert lost, "the workload is too tame: a plain (timestamp, id) cursor got through it"
