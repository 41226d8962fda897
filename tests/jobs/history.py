"""A random history of jobs: services that enqueue, executors that are killed, frozen, cut off, ended and started again.

A service that changes a group locks its row and enqueues its next version, so that dependent transactions are known.
Groups whose jobs may fail and be passed have writers that know nothing of each other.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import psycopg

from compactory_connectors.jobs import Jobs, NewJob
from compactory_connectors.jobs.operators import Act, change_jobs
from tests.jobs.harness import Bench
from tests.jobs.mortal import FIRST, TTL, TURN
from tests.source.workload import wait_until
from tests.stack.crowd import Crowd, Undo
from tests.stack.mortal import Mortal
from tests.stack.proxy import Proxy

__all__ = ["CLOCKS", "Wrong", "history"]

CLOCKS = (-600.0, 0.0, 600.0)
ORDERED = [f"g{n}" for n in range(8)]
PASSED = [f"s{n}" for n in range(4)]
BURST = 50  # slow jobs, so that executors have claimed some that they have not begun
MANY = 600  # slow jobs: two seconds of work for each of three executors
FEW = 8  # jobs that leave threads free: one that is ended wrongly begins again at once, beside itself
_LEFT = 'SELECT state, "group", executor, position, rescues, count(*) FROM compactory.jobs_live GROUP BY 1, 2, 3, 4, 5'
_NEXT = 'UPDATE versions SET version = version + 1 WHERE "group" = %s RETURNING version'


class Wrong(AssertionError):
    """A history has gone wrong: a job or a group ran twice at once, or where it should not."""


class Services(Crowd):
    """Change groups and enqueue; return the ids of jobs."""

    def __init__(self, url: str, seeded: random.Random) -> None:
        super().__init__(url, seeded, count=4)
        self._jobs = Jobs()

    def write(self, connection: psycopg.Connection, random_: random.Random) -> list[int]:
        kinds = random_.choices(["write", "plain", "async"], k=random_.randint(0, 3))
        if random_.random() < 0.01:
            kinds += ["slow"] * BURST
        batch = [NewJob(type=kind, origin=f"{random_.random()}") for kind in kinds]
        passed = random_.sample(PASSED, random_.randint(0, 1))
        batch += [NewJob(type="skip", group=group, origin=f"{random_.random()}") for group in passed]
        for group in sorted(random_.sample(ORDERED, random_.randint(0, 2))):
            row = connection.execute(_NEXT, [group]).fetchone()
            assert row is not None
            batch.append(NewJob(type="write", payload={"version": row[0]}, group=group, origin=f"{row[0]}"))
        made = self._jobs.enqueue_many(connection, batch)
        self.wait(random_.random() * (0.6 if random_.random() < 0.1 else 0.05))
        if random_.random() < 0.1:
            raise Undo
        return made


@dataclass
class _Slot:
    mortal: Mortal
    network: Proxy  # between its keeper and Postgres


class Fleet:
    """Executors, each with a clock and a network of its own. ``without`` is the part that they lack."""

    def __init__(self, bench: Bench, random_: random.Random, kafka: list[str], without: str) -> None:
        self._bench, self._random, self._kafka, self._without = bench, random_, kafka, without
        self._jobs = Jobs()
        self._next: list[Callable[[_Slot, Callable[[float], object]], None]] = []
        self._slots = []
        for clock in CLOCKS:
            network = Proxy(urlsplit(bench.url).port)
            self._slots.append(_Slot(self._begin(network, clock), network))

    def disturb(self, wait: Callable[[float], object]) -> None:
        """Something happens to one of them; each kind comes as often as the others.

        Where stale attempts can end jobs, only answers are lost: the fence stops the stale attempts of the other kinds.
        Where jobs are not handed over, executors always have more claimed than they can begin before a turn.
        """
        if not self._next:
            self._next = [self._kill, self._freeze, self._freeze_until_rescued, self._end, self._lose]
            if self._without == "token":
                self._next = [self._lose]
            elif self._without == "hand-over":
                self._next = [self._overload]
            self._random.shuffle(self._next)
        self._next.pop()(self._random.choice(self._slots), wait)
        for each in self._slots:
            if each.mortal.ended():
                each.mortal = self._begin(each.network, self._random.choice(CLOCKS))
        wait(self._random.random() * 0.3)

    def close(self) -> None:
        for slot in self._slots:
            slot.network.close()

    def _begin(self, network: Proxy, clock: float) -> Mortal:
        return self._bench.mortal(*self._kafka, ahead=clock, without=self._without, port=network.port)

    def _kill(self, slot: _Slot, _wait: Callable[[float], object]) -> None:
        slot.mortal.end()

    def _freeze(self, slot: _Slot, wait: Callable[[float], object]) -> None:
        slot.mortal.freeze()
        wait(self._random.random() * 2 * TTL)
        slot.mortal.resume()

    def _freeze_until_rescued(self, slot: _Slot, wait: Callable[[float], object]) -> None:
        """Its jobs run elsewhere when it wakes up."""
        slot.mortal.freeze()
        with suppress(AssertionError, psycopg.Error):  # Postgres is away
            executor = self._bench.executor_of(slot.mortal)
            jobs = self._bench.column("SELECT id FROM compactory.jobs_live WHERE executor = %s", executor)
            left = "SELECT id FROM compactory.jobs_live WHERE id = ANY (%s) AND (state = 'scheduled' OR executor = %s)"
            wait_until(lambda: self._bench.executor_of(slot.mortal) is None, 4 * TTL, "another one to notice")
            wait_until(lambda: not self._bench.column(left, jobs, executor), 2 * TTL, "another one to have its jobs")
            wait(0.2)
        slot.mortal.resume()

    def _end(self, slot: _Slot, _wait: Callable[[float], object]) -> None:
        slot.mortal.send(signal.SIGTERM)
        slot.mortal.process.join(20)
        assert slot.mortal.ended()

    def _lose(self, slot: _Slot, wait: Callable[[float], object]) -> None:
        """A first attempt's end is committed and the answer lost, while the job's partition and its second one move."""
        wait(TURN - 0.6 - time.monotonic() % TURN)
        with suppress(psycopg.Error), self._bench.sql.transaction():  # Postgres is away
            batch = [NewJob(type="again", origin=f"{self._random.random()}") for _ in range(FEW)]
            self._jobs.enqueue_many(self._bench.sql, batch)

        def watch(sent: bytes) -> None:
            if FIRST in sent:
                slot.network.swallow_answers()

        slot.network.watch = watch
        wait(0.8 + self._random.random() * TTL / 4)
        slot.network.watch = None
        slot.network.thaw()

    def _overload(self, _slot: _Slot, wait: Callable[[float], object]) -> None:
        with self._bench.sql.transaction():
            self._jobs.enqueue_many(self._bench.sql, [NewJob(type="slow", origin=f"{n}") for n in range(MANY)])
        wait(TURN)


def history(
    bench: Bench,
    seeded: random.Random,
    seconds: float,
    kafka: list[str],
    outages: Callable[[], object],
    without: str = "",
) -> None:
    """Raises Wrong as soon as two at once, or a job that was not handed over, are seen."""
    bench.sql.execute('CREATE TABLE versions ("group" text PRIMARY KEY, version int)')
    with bench.sql.cursor() as cursor:
        cursor.executemany("INSERT INTO versions VALUES (%s, 0)", [[group] for group in ORDERED])
    services = Services(bench.url, seeded)
    fleet = Fleet(bench, seeded, kafka, without)
    over = threading.Event()
    timer = threading.Timer(seconds, over.set)
    timer.start()
    try:
        with services.writing():
            while not over.is_set():
                fleet.disturb(over.wait)
                outages()
                look(bench)
        try:
            drain(bench)
        finally:
            print(bench.sql.execute(_LEFT).fetchall(), bench.column("SELECT id FROM compactory.job_executors"))
        look(bench)
        compare(bench, services.committed)
    finally:
        timer.cancel()
        fleet.close()


def drain(bench: Bench) -> None:
    """Wait for all jobs, as long as some end. Those whose executors died five times are an operator's to retry."""
    left = bench.count("compactory.jobs_live")
    while left:
        change_jobs(bench.sql, Act.RETRY)
        before = left
        wait_until(lambda: bench.count("compactory.jobs_live") < before, 60, "a job to end")  # noqa: B023 - called here
        left = bench.count("compactory.jobs_live")


def look(bench: Bench) -> None:
    """Raise Wrong if handlers have seen something."""
    for table in ("collisions", "strays"):
        if found := bench.sql.execute(f"SELECT * FROM {table}").fetchall():
            raise Wrong(f"{table}: {found}")


def compare(bench: Bench, committed: set[int]) -> None:
    """Every committed job has succeeded, its effect is there once, and groups were run in order."""
    states = dict(bench.sql.execute("SELECT id, state FROM compactory.jobs").fetchall())
    assert committed <= states.keys()
    assert {job: state for job, state in states.items() if state != "succeeded"} == {}
    written = bench.column("SELECT id FROM compactory.jobs WHERE type <> 'plain'")
    assert sorted(bench.column("SELECT job FROM effects")) == sorted(written)
    for group, last in bench.sql.execute("SELECT * FROM versions").fetchall():
        ran = bench.column('SELECT version FROM effects WHERE "group" = %s ORDER BY n', group)
        assert ran == list(range(1, last + 1)), group
