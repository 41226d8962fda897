"""Finds keys that a topic has and its table has not, a slice at a time, so that polls go on in between.

The first sweep compares the topic with every key of the table. It keeps a hash and the numbers of the keys of each
range of the primary key. These and the records published since make later sweeps cheap: Postgres hashes its keys, and
only ranges that changed are fetched.

A key is taken for vanished when it lived in the topic, no range had it, and nothing was published of it since the sweep
began. The ranges come from several snapshots: a row that moved between them is a new version, which a poll has
published by the time the caller asks :meth:`Sweeper.untouched`.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass

from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from compactory.kafka.client import Kafka
from compactory_connectors.kafka.producer_record import Copy, ProducerRecord
from compactory_connectors.kafka.topic_reader import TopicReader

from ..planning.table_plan import TablePlan
from ..polling.removal import misplaced
from ..postgres.server import Server
from ..verify.comparison import KEYS, Comparison
from ..verify.key_ranges import KeyRange, KeyRanges, living_keys

__all__ = ["Found", "Steps", "Sweeper", "stamps"]

Steps = Generator[None, None, "Found"]

_SLICE = 4000  # records of the topic that are looked at in one step, some 10 ms
_PAUSE = 0.02  # seconds that a step waits for them
_MOST_TOUCHED = 200_000  # keys published since the last sweep, about 100 bytes each; with more it begins anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Records of ``vanished`` keys, and ``misplaced`` ones: copies of living keys in other partitions.

    ``keys`` is how many the topic has, those that vanished included. ``known``: all that vanished was remembered.
    """

    keys: int
    vanished: tuple[Copy, ...] = ()
    misplaced: tuple[Copy, ...] = ()
    known: bool = False


class Sweeper:
    """Sweeps one table's topic. Owned by one thread. Raises what Kafka's and Postgres' sides raise, and RowError.

    ``home`` says in which partition a key belongs, None where that is not known. Takes 8 bytes a key of the table
    between sweeps, and about three times as much during the first one.
    """

    def __init__(self, kafka: Kafka, server: Server, plan: TablePlan, home: Callable[[bytes], int | None]) -> None:
        self._kafka = kafka
        self._server = server
        self._plan = plan
        self._home = home
        self._ranges: list[KeyRange] | None = None
        self._touched: dict[int, bool] = {}
        self._remembered: array[int] = array("q")
        self._several: set[int] = set()
        self._keys = 0
        self._sweeping = False

    @property
    def knows(self) -> bool:
        """Whether the next sweep need not read everything."""
        return self._ranges is not None

    def note(self, records: Iterable[ProducerRecord]) -> None:
        """These were published."""
        if not self._sweeping and self._ranges is None:
            return
        for record in records:
            if record[0] is not None:
                self._touched[hash(record[0])] = record[1] is not None
        if len(self._touched) > _MOST_TOUCHED and not self._sweeping:
            self.forget()

    def forget(self) -> None:
        """Let go of what is known: the next sweep begins anew."""
        self._ranges = None
        self._touched, self._several = {}, set()
        self._remembered = array("q")

    def untouched(self, copies: Iterable[Copy]) -> list[Copy]:
        """Those of whose keys nothing was published since the sweep began."""
        return [copy for copy in copies if hash(copy.key) not in self._touched]

    def remember(self, vanished: Iterable[Copy]) -> None:
        """These stay in the topic for now: the next sweep looks at them again."""
        self._remembered = array("q", {hash(copy.key) for copy in vanished})

    def run(self) -> Steps:
        """One sweep; it is to be closed where it is not run to its end."""
        before, self._touched = self._touched, {}
        remembered = set(self._remembered)
        self._sweeping = True
        done = False
        try:
            suspects = yield from (self._first() if self._ranges is None else self._again(before, remembered))
            suspects.difference_update(self._touched)
            vanished, misplaced = yield from self._named(suspects)
            done = True
        finally:
            self._sweeping = False
            if not done:
                self.forget()
        self._remembered, self._several = array("q"), set()
        keys = {hash(copy.key) for copy in vanished}
        return Found(keys=self._keys + len(keys), vanished=vanished, misplaced=misplaced, known=keys <= remembered)

    def _first(self) -> Generator[None, None, set[int]]:
        suspects: set[int] = set()
        self._several, self._keys, done = set(), 0, 0
        with Comparison(KEYS) as comparison:
            for messages in self._topic():
                comparison.take_records(messages)
                yield
            yield from self._read_table(comparison)
            for kept, gone, several in comparison.vanished():
                suspects |= gone
                self._several |= several
                self._keys += kept
                if (done := done + kept + len(gone)) >= _SLICE:
                    done = 0
                    yield
        return suspects

    def _read_table(self, comparison: Comparison) -> Generator[None]:
        plan = self._plan
        if not plan.tie_breakers or plan.connector.suffix or plan.kind not in "rp":  # no order to go by: read at once
            for keys in living_keys(self._server, self._plan):
                comparison.take_numbers(map(hash, keys))
            return
        known: list[KeyRange] = []
        for found in KeyRanges(self._server, self._plan).read():
            comparison.take_numbers(found.numbers)
            known.append(found)
            yield
        self._ranges = known

    def _again(self, before: dict[int, bool], remembered: set[int]) -> Generator[None, None, set[int]]:
        assert self._ranges is not None
        ranges = KeyRanges(self._server, self._plan)
        suspects = remembered | {number for number, alive in before.items() if alive}
        known: list[KeyRange] = []
        for old in self._ranges:
            if ranges.same(old):
                known.append(old)
            else:
                suspects.update(old.numbers)
                for part in ranges.read(old.low, old.high):
                    known.append(part)
                    yield
            yield
        self._ranges = known
        suspects.difference_update(number for number, alive in before.items() if not alive)
        for part in known if suspects else ():
            suspects.difference_update(part.numbers)
        self._keys = sum(len(part.numbers) for part in known)
        return suspects

    def _named(self, suspects: set[int]) -> Generator[None, None, tuple[tuple[Copy, ...], tuple[Copy, ...]]]:
        """The living records of suspected keys, and of other keys those that are not in their partition as well."""
        wanted = suspects | self._several
        newest: dict[tuple[bytes, int], int | None] = {}
        for messages in self._topic() if wanted else ():
            newest.update(stamps(messages, lambda key: hash(key) in wanted))
            yield
        vanished = tuple(
            Copy(key, part) for (key, part), stamp in newest.items() if stamp is not None and hash(key) in suspects
        )
        living = {place: stamp for place, stamp in newest.items() if hash(place[0]) not in suspects}
        return vanished, tuple(misplaced(living, self._home, int(time.time() * 1000)))

    def _topic(self) -> Iterator[list[Message]]:
        with TopicReader(self._kafka, self._plan.topic, large_buffer=False) as topic:
            yield from topic.read_to(topic.ends(), limit=_SLICE, pause=_PAUSE)


def stamps(
    messages: Iterable[Message], wanted: Callable[[bytes], bool]
) -> Iterator[tuple[tuple[bytes, int], int | None]]:
    """Key and partition of each record of a wanted key, with its timestamp as `removal.misplaced` takes it."""
    for message in messages:
        key, partition = message.key(), message.partition()
        if isinstance(key, bytes) and partition is not None and wanted(key):
            kind, stamp = message.timestamp()
            alive = message.value() is not None
            yield (key, partition), (stamp if kind == TIMESTAMP_CREATE_TIME else -1) if alive else None
