"""One class wakes source, outbox and jobs: who sleeps, who notifies, and what ends a wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest

from compactory_connectors.postgres.wakeup import Wakeup

CLASS, KEY = 4711, 7
LARGE = (1 << 32) - 5  # an oid that is no signed integer


@pytest.fixture
def sessions(database: str) -> Iterator[list[psycopg.Connection[Any]]]:
    """Three connections in autocommit."""
    with ExitStack() as stack:
        yield [stack.enter_context(psycopg.connect(database, autocommit=True)) for _ in range(3)]


def listens(connection: psycopg.Connection[Any]) -> bool:
    return connection.execute("SELECT count(*) FROM pg_listening_channels()").fetchone() == (1,)


def test_one_sleeps_for_a_key_and_the_other_is_told(sessions: list[psycopg.Connection[Any]]) -> None:
    with (
        closing(Wakeup(sessions[0], "c", (CLASS, KEY))) as own,
        closing(Wakeup(sessions[1], "c", (CLASS, KEY))) as other,
    ):
        assert other.sleep()
        assert not own.sleep()
        slept = own.sleep_for([KEY, LARGE])
        assert (slept.asleep, slept.shared, own.keys) == ({LARGE}, {KEY}, {LARGE})
        other.wake()
        assert own.sleep_for([KEY]).asleep == {KEY}
        own.wake()
        assert (own.asleep, other.asleep) == (False, False)
        assert other.sleep_for([LARGE]).asleep == {LARGE}


def test_a_silent_writer_keeps_others_awake(sessions: list[psycopg.Connection[Any]]) -> None:
    """Neither asleep nor shared: it holds the lock as writers do, and will not notify."""
    with closing(Wakeup(sessions[0], "c", (CLASS, KEY))) as own, sessions[1].transaction():
        sessions[1].execute("SELECT pg_try_advisory_xact_lock_shared(%s, %s)", [CLASS, KEY])
        slept = own.sleep_for([KEY])
        assert (slept.asleep, slept.shared) == (set(), set())


def test_a_wait_until_a_time_that_has_passed_ends_at_once(sessions: list[psycopg.Connection[Any]]) -> None:
    with closing(Wakeup(sessions[0], "c", (CLASS, KEY))) as own:
        began, late = time.monotonic(), threading.Timer(5.0, own.poke)
        late.start()
        assert own.wait(-0.001) == set()
        assert time.monotonic() - began < 4
        late.cancel()


def test_a_wait_ends_with_a_notification_a_poke_or_its_time(sessions: list[psycopg.Connection[Any]]) -> None:
    with closing(Wakeup(sessions[0], "c", (CLASS, KEY))) as own:
        sessions[1].execute("SELECT pg_notify('c', '12'), pg_notify('c', '13')")
        assert own.wait(20) == {"12", "13"}
        sessions[1].execute("SELECT pg_notify('c', '14')")
        sessions[0].execute("SELECT 1")  # which may bring it along
        assert own.wait(20) == {"14"}
        assert own.wait(0) == set()
        began = time.monotonic()
        threading.Timer(0.1, own.poke).start()
        assert own.wait(20) == set()
        assert time.monotonic() - began < 10


def test_a_source_listens_from_its_first_sleep_on(sessions: list[psycopg.Connection[Any]]) -> None:
    """In the hours of a first load's transaction a listener would keep the server's queue from being emptied."""
    with closing(Wakeup(sessions[0], "c", (CLASS, KEY), listen=False)) as own:
        assert not listens(sessions[0])
        own.sleep_for([KEY])
        assert listens(sessions[0])
    with closing(Wakeup(sessions[1], "c", (CLASS, KEY))):
        assert listens(sessions[1])
