"""Finds keys that a topic has and its table has not, a slice at a time, so that polls go on in between.

The first sweep reads the topic and every key of the table. What it learns of the table (a hash and digests of each
range of its primary key) and what was published since make later ones cheap: Postgres hashes its keys, and only ranges
that changed are fetched.

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

from ..control.removal import Copy, misplaced
from ..poll.digests import LivingKeys, TopicKeys, digest
from ..poll.key_ranges import KeyRange
from ..poll.record_batch import Reader, Record
from ..publish.topics import TopicReader

__all__ = ["Found", "Steps", "Sweeper"]

Steps = Generator[None, None, "Found"]

_SLICE = 4000  # records of the topic that are looked at in one step, some 10 ms
_PAUSE = 0.02  # seconds that a step waits for them
_MOST_TOUCHED = 200_000  # keys published since the last sweep, about 100 bytes each; with more it begins anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a sweep has found: records of ``vanished`` keys, and ``strays``: copies of living keys in other partitions.

    ``keys`` is how many the topic has, those that vanished included. ``known``: all that vanished was remembered.
    """

    keys: int
    vanished: tuple[Copy, ...] = ()
    strays: tuple[Copy, ...] = ()
    known: bool = False


class Sweeper:
    """Sweeps one table's topic. Owned by one thread. Raises what Kafka's and Postgres' sides raise, and RowError.

    ``home`` says in which partition a key belongs, None where that is not known. Takes 8 bytes a key of the table
    between sweeps, and about three times as much during the first one.
    """

    def __init__(self, kafka: Kafka, reader: Reader, home: Callable[[bytes], int | None]) -> None:
        self.reader = reader
        self._kafka = kafka
        self._home = home
        self._ranges: list[KeyRange] | None = None
        self._touched: dict[int, bool] = {}
        self._remembered: array[int] = array("Q")
        self._several: set[int] = set()
        self._keys = 0
        self._sweeping = False

    @property
    def knows(self) -> bool:
        """Whether the next sweep need not read everything."""
        return self._ranges is not None

    def note(self, records: Iterable[Record]) -> None:
        """These were published."""
        if not self._sweeping and self._ranges is None:
            return
        for record in records:
            if record[0] is not None:
                self._touched[digest(record[0])] = record[1] is not None
        if len(self._touched) > _MOST_TOUCHED and not self._sweeping:
            self.forget()

    def forget(self) -> None:
        """Let go of what is known: the next sweep begins anew."""
        self._ranges = None
        self._touched, self._several = {}, set()
        self._remembered = array("Q")

    def untouched(self, copies: Iterable[Copy]) -> list[Copy]:
        """Those of whose keys nothing was published since the sweep began."""
        return [copy for copy in copies if digest(copy.key) not in self._touched]

    def remember(self, vanished: Iterable[Copy]) -> None:
        """These stay in the topic for now: the next sweep looks at them again."""
        self._remembered = array("Q", {digest(copy.key) for copy in vanished})

    def run(self) -> Steps:
        """One sweep; it is to be closed where it is not run to its end."""
        before, self._touched = self._touched, {}
        remembered = set(self._remembered)
        self._sweeping = True
        done = False
        try:
            suspects = yield from (self._first() if self._ranges is None else self._again(before, remembered))
            suspects.difference_update(self._touched)
            vanished, strays = yield from self._named(suspects)
            done = True
        finally:
            self._sweeping = False
            if not done:
                self.forget()
        self._remembered, self._several = array("Q"), set()
        keys = {digest(copy.key) for copy in vanished}
        return Found(keys=self._keys + len(keys), vanished=vanished, strays=strays, known=keys <= remembered)

    def _first(self) -> Generator[None, None, set[int]]:
        topic = TopicKeys()
        for messages in self._topic():
            for key, partition, message in messages:
                topic.partition(partition).note(digest(key), alive=message.value() is not None)
            yield
        living, self._several = topic.merged()
        self._keys = len(living)
        yield
        yield from self._read_table(living)
        self._keys -= len(living)
        return living.living()

    def _read_table(self, living: LivingKeys) -> Generator[None]:
        """Leave in ``living`` what the table has not."""
        ranges = self.reader.key_ranges()
        if ranges is None:  # without a primary key there is no order to go by: one snapshot, read at once
            render_key = self.reader.plan.rows.render_key
            for rows in self.reader.living_rows():
                living.forget(digest(key) for key in map(render_key, rows) if key is not None)
            return
        known: list[KeyRange] = []
        for found in ranges.read():
            living.forget(found.digests)
            known.append(found)
            yield
        self._ranges = known

    def _again(self, before: dict[int, bool], remembered: set[int]) -> Generator[None, None, set[int]]:
        ranges = self.reader.key_ranges()
        assert ranges is not None
        assert self._ranges is not None
        suspects = remembered | {number for number, alive in before.items() if alive}
        known: list[KeyRange] = []
        for old in self._ranges:
            if ranges.same(old):
                known.append(old)
            else:
                suspects.update(old.digests)
                for part in ranges.read(old.low, old.high):
                    known.append(part)
                    yield
            yield
        self._ranges = known
        suspects.difference_update(number for number, alive in before.items() if not alive)
        for part in known if suspects else ():
            suspects.difference_update(part.digests)
        self._keys = sum(len(part.digests) for part in known)
        return suspects

    def _named(self, suspects: set[int]) -> Generator[None, None, tuple[tuple[Copy, ...], tuple[Copy, ...]]]:
        """The living records of suspected keys, and of other keys those that are not in their partition as well."""
        wanted = suspects | self._several
        newest: dict[tuple[bytes, int], int | None] = {}
        for messages in self._topic() if wanted else ():
            for key, partition, message in messages:
                if digest(key) in wanted:
                    alive = message.value() is not None
                    kind, stamp = message.timestamp()
                    newest[key, partition] = (stamp if kind == TIMESTAMP_CREATE_TIME else -1) if alive else None
            yield
        vanished = tuple(
            Copy(key, part) for (key, part), stamp in newest.items() if stamp is not None and digest(key) in suspects
        )
        living = {place: stamp for place, stamp in newest.items() if digest(place[0]) not in suspects}
        return vanished, tuple(misplaced(living, self._home, int(time.time() * 1000)))

    def _topic(self) -> Iterator[Iterator[tuple[bytes, int, Message]]]:
        with TopicReader(self._kafka, self.reader.plan.topic, ahead=False) as topic:
            for messages in topic.read_to(topic.ends(), most=_SLICE, pause=_PAUSE):
                yield _keyed(messages)


def _keyed(messages: Iterable[Message]) -> Iterator[tuple[bytes, int, Message]]:
    for message in messages:
        key, partition = message.key(), message.partition()
        if isinstance(key, bytes) and partition is not None:
            yield key, partition, message
