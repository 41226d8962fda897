"""Transaction ids past 2³² and more than 2³¹ apart: 32-bit ``xmin`` beside 64-bit snapshots."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import nullcontext

import psycopg
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.postgres.snapshot import Snapshot
from compactory_connectors.source.offsets.offset_parts import SeenSnapshot
from compactory_connectors.source.polling.table_reader import _HALF_XIDS, _is_too_old
from tests.source.harness import STAMP, Feed, add, expected, seen_above, widen
from tests.source.workload import TERMINALS
from tests.stack.postgres_copies import new_server, run

EPOCH = 1 << 32
FIRST = 3
"""Ids below are Postgres' own."""


def age(xid: int, counter: int) -> int:
    """What ``age(xid)`` says of a 32-bit id where the counter stands at a 64-bit one (``xid_age`` in xid.c)."""
    if xid < FIRST:
        return (1 << 31) - 1
    distance = (counter - xid) % EPOCH
    return distance - EPOCH if distance >= 1 << 31 else distance


def unseen(seen_snapshot: SeenSnapshot, xmin: int, counter: int) -> bool:
    """The condition that ``Conditions`` writes as SQL, on 32 bits."""
    recent = 0 <= age(xmin, counter) <= age(seen_snapshot.snapshot.xmin % EPOCH, counter)
    return recent and xmin not in {xid % EPOCH for xid in seen_snapshot.seen or ()}


counters = st.one_of(
    st.integers(FIRST, 1 << 40),
    st.builds(lambda epoch, near: max(FIRST, epoch * EPOCH + near), st.integers(0, 200), st.integers(-3000, 3000)),
)
"""Counters anywhere, and around the borders of epochs."""


@st.composite
def moments(draw: st.DrawFn) -> tuple[SeenSnapshot, int]:
    """A seen snapshot, and the counter some time after it."""
    xmin = draw(counters)
    snapshot = Snapshot(xmin, xmin + draw(st.integers(0, 500)))
    seen = draw(st.lists(st.integers(xmin, xmin + 500), max_size=5))
    now = snapshot.xmax + draw(st.one_of(st.integers(0, 2000), st.integers(0, _HALF_XIDS)))
    return seen_above(snapshot, seen), now


@given(moments(), st.integers(0, 1 << 31))
def test_an_id_is_unseen_exactly_when_it_is_not_covered(moment: tuple[SeenSnapshot, int], back: int) -> None:
    """Guarantee 8: of row versions that are younger than 2³¹ transactions, whatever the epoch."""
    seen_snapshot, now = moment
    wide = now - 1 - back
    assume(
        min(wide, wide % EPOCH, seen_snapshot.snapshot.xmin % EPOCH) >= FIRST
        and not _is_too_old(seen_snapshot, Snapshot(now, now))
    )
    covered = wide < seen_snapshot.snapshot.xmin or wide in (seen_snapshot.seen or ())
    assert unseen(seen_snapshot, wide % EPOCH, now) == (not covered)


@given(moments(), st.integers(0, 1 << 36))
def test_a_horizon_is_given_up_before_its_ids_turn_round(moment: tuple[SeenSnapshot, int], further: int) -> None:
    """Guarantee 8: beyond 2³¹ an old id looks like one to come."""
    seen_snapshot, now = moment
    later = now + further
    if not _is_too_old(seen_snapshot, Snapshot(later, later)):
        assert later - seen_snapshot.snapshot.xmin < 1 << 31
        assert age(seen_snapshot.snapshot.xmin % EPOCH, later) >= 0


@given(counters, st.integers(1, 1000), st.integers(1, 1000), st.data())
def test_rows_of_an_epoch_ago_hide_nothing(xmin: int, running: int, wide: int, data: st.DataObject) -> None:
    """Guarantee 8: a row that was frozen 2³² transactions ago bears the 32 bits of one that runs now."""
    xip = tuple(sorted({xmin} | {xmin + data.draw(st.integers(0, running)) for _ in range(3)}))
    snapshot = Snapshot(xmin, xmin + running + 1, xip)
    frozen = [widen(xid % EPOCH, snapshot.xmax) for xid in (*xip, xmin + wide) if xid >= EPOCH]
    seen_snapshot = seen_above(snapshot, frozen)
    assert not {*xip} & {*(seen_snapshot.seen or ())}


def grow_old(server: PostgresServer, counter: int) -> None:
    """Let the next id be ``counter``, 64 bits; rows are frozen before, as VACUUM would have done long ago."""
    run(server, "vacuumdb", "-p", str(server.port), "--all", "--freeze", "--quiet")
    server.stop()
    epoch, xid = divmod(counter, EPOCH)
    oldest = str((xid - 1000) % EPOCH)
    run(server, "pg_resetwal", "-f", "-e", str(epoch), "-x", str(xid), "-u", oldest, server._data)
    segment = server._data / "pg_xact" / f"{xid // (1 << 20):04X}"
    if not segment.exists():
        segment.write_bytes(bytes(256 * 1024))
        segment.chmod(0o600)
        if server._user is not None:
            os.chown(segment, server._user, server._user)
    server.start()


@pytest.fixture
def url(adopted: bool) -> Iterator[tuple[PostgresServer, str]]:
    """A server of its own with the table; rows of ``template0`` can be frozen too."""
    server = new_server(settings={"fsync": "off", "autovacuum": "off"})
    server.start()
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("ALTER DATABASE template0 ALLOW_CONNECTIONS true")
        connection.execute("CREATE DATABASE d")
    with psycopg.connect(server.url("d"), autocommit=True) as connection:
        connection.execute(TERMINALS)
        if adopted:
            connection.execute(STAMP)
        add(connection, *(f"T{number}" for number in range(20)))
    yield server, server.url("d")
    server.remove()


@pytest.mark.proof
def test_a_history_over_the_border_of_an_epoch(
    url: tuple[PostgresServer, str], adopted: bool, seeded: random.Random
) -> None:
    """Guarantee 8: open transactions with savepoints, restarts of the source, while 32-bit ids begin anew."""
    server, place = url
    for quarter in (1, 2, 3):
        grow_old(server, quarter * (EPOCH // 4))
    grow_old(server, EPOCH - 150)
    feed = Feed(place, adopted=adopted)
    feed.settle()
    with psycopg.connect(place) as long, psycopg.connect(place, autocommit=True) as short:
        add(long, "early")
        for number in range(300):
            with long.transaction():
                long.execute("UPDATE terminal_acquirer SET acquirer_id = %s WHERE id = %s", [f"L{number}", number % 5])
            change = "UPDATE terminal_acquirer SET acquirer_id = %s, is_active = NOT is_active WHERE id = %s"
            short.execute(change, [f"S{number}", seeded.randint(6, 20)])
            if seeded.random() < 0.2:
                feed.poll(seeded.choice([2, 5, 1000]), pages=seeded.choice([1, None]))
            if seeded.random() < 0.1:
                feed.restart()
            if seeded.random() < 0.1:
                long.commit()
        long.commit()
    feed.settle()
    assert feed.seen_snapshot is not None
    assert feed.seen_snapshot.snapshot.xmax > EPOCH + FIRST
    assert feed.topic == expected(place)
    feed.close()


@pytest.mark.proof
def test_an_offset_from_half_an_epoch_ago(url: tuple[PostgresServer, str], adopted: bool) -> None:
    """Guarantee 8: a source that was away while more than 2³¹ ids were given out."""
    server, place = url
    feed = Feed(place, adopted=adopted)
    feed.settle()
    feed.server.close()
    for quarter in (1, 2, 3):
        grow_old(server, quarter * (EPOCH // 4))
    with psycopg.connect(place, autocommit=True) as connection:
        connection.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 7")
        add(connection, "new")
    feed.restart()
    before = len(feed.sent)
    feed.settle()
    assert feed.topic == expected(place)
    assert len(feed.sent) - before == (2 if adopted else 21)
    feed.restart()
    assert feed.settle() == []
    feed.close()


@pytest.mark.proof
@pytest.mark.parametrize("adopted", ["xmin"], indirect=True)
def test_a_first_load_that_was_paused_for_half_an_epoch(url: tuple[PostgresServer, str], adopted: bool) -> None:
    """Guarantee 8: what changed meanwhile of the rows that were sent is sent again."""
    server, place = url
    feed = Feed(place, adopted=adopted)
    feed.poll(page_rows=6, pages=2)
    assert len(feed.topic) == 12
    feed.server.close()
    for quarter in (1, 2, 3):
        grow_old(server, quarter * (EPOCH // 4))
    with psycopg.connect(place, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")  # its place in the order of rows stays
        connection.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 7")
        connection.execute("DELETE FROM terminal_acquirer WHERE id = 8")
        add(connection, "new")
    feed.restart()
    feed.settle()
    assert feed.topic == expected(place)
    feed.close()


@pytest.mark.parametrize("adopted", ["xmin"], indirect=True)
@pytest.mark.parametrize("savepoint", [False, True], ids=["transaction", "savepoint"])
def test_a_frozen_row_bears_the_id_of_what_runs(url: tuple[PostgresServer, str], savepoint: bool) -> None:
    """Guarantee 8: xmin of a row is what it was 2³² transactions ago; what runs now under it was not seen."""
    server, place = url
    with psycopg.connect(place, autocommit=True) as connection:
        (xid,) = connection.execute("SELECT max(xmin::text::int8) FROM terminal_acquirer").fetchone()
    grow_old(server, EPOCH + xid - int(savepoint))
    feed = Feed(place)
    with psycopg.connect(place) as open_:
        open_.execute("SELECT pg_current_xact_id()" if savepoint else "SELECT 1")
        with open_.transaction() if savepoint else nullcontext():
            open_.execute("UPDATE terminal_acquirer SET acquirer_id = 'late' WHERE id = 1")
        (again,) = open_.execute("SELECT xmin::text::int8 FROM terminal_acquirer WHERE id = 1").fetchone()
        assert again == xid
        with psycopg.connect(place, autocommit=True) as connection:
            add(connection, "meanwhile")
        feed.poll(page_rows=6)
        feed.settle()
        open_.commit()
    feed.settle()
    assert feed.topic == expected(place)
    feed.close()
