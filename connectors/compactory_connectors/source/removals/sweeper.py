"""Finds keys that a topic has and its table lacks, a slice at a time, so that polls run in between.

The first sweep compares the topic with every key of the table. It keeps a hash and the numbers of the keys of each
range of the primary key. With these and the records published since, later sweeps are cheap: Postgres hashes its keys,
and only ranges that changed are fetched.

A key has vanished if it lived in the topic, no range had it, and no record of it was published since the sweep began.
The ranges come from several snapshots: a row that moved between them is a new version, which a poll has published by
the time the caller asks :meth:`Sweeper.unpublished`.
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

__all__ = ["SweepResult", "Sweeper", "newest_stamps"]

_SLICE = 4000  # records of the topic in one step, some 10 ms
_PAUSE = 0.02  # seconds that a step waits for them
_MOST_PUBLISHED = 200_000  # keys published since the last sweep, about 100 bytes each; with more it restarts


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """Records of ``vanished`` keys, and ``misplaced`` ones: copies of living keys in other partitions.

    ``keys`` is the number of the topic's keys, vanished ones included. ``was_remembered``: the caller had remembered
    all vanished keys.
    """

    keys: int
    vanished: tuple[Copy, ...] = ()
    misplaced: tuple[Copy, ...] = ()
    was_remembered: bool = False


class Sweeper:
    """Sweeps one table's topic. Owned by one thread. Raises what Kafka's and Postgres' sides raise, and RowError.

    ``home_of_key`` returns the partition where a key belongs, or None. Takes 8 bytes a key of the table between sweeps,
    and about three times as much during the first one.
    """

    def __init__(
        self, kafka: Kafka, server: Server, plan: TablePlan, home_of_key: Callable[[bytes], int | None]
    ) -> None:
        self._kafka = kafka
        self._server = server
        self._plan = plan
        self._home_of_key = home_of_key
        self._ranges: list[KeyRange] | None = None
        self._published: dict[int, bool] = {}
        self._remembered: array[int] = array("q")
        self._copied: set[int] = set()
        self._keys = 0
        self._is_running = False

    @property
    def has_ranges(self) -> bool:
        """Return True if the next sweep need not read everything."""
        return self._ranges is not None

    def note(self, records: Iterable[ProducerRecord]) -> None:
        if not self._is_running and self._ranges is None:
            return
        for record in records:
            if record[0] is not None:
                self._published[hash(record[0])] = record[1] is not None
        if len(self._published) > _MOST_PUBLISHED and not self._is_running:
            self.forget()

    def forget(self) -> None:
        """Forget the ranges: the next sweep reads everything."""
        self._ranges = None
        self._published, self._copied = {}, set()
        self._remembered = array("q")

    def unpublished(self, copies: Iterable[Copy]) -> list[Copy]:
        """Return the copies of whose keys no record was published since the sweep began."""
        return [copy for copy in copies if hash(copy.key) not in self._published]

    def remember(self, vanished: Iterable[Copy]) -> None:
        """Remember vanished keys that stay in the topic for now: the next sweep checks them again."""
        self._remembered = array("q", {hash(copy.key) for copy in vanished})

    def run(self) -> Generator[None, None, SweepResult]:
        """Sweep once; close the generator unless it ran to its end."""
        published, self._published = self._published, {}
        remembered = set(self._remembered)
        self._is_running = True
        is_complete = False
        try:
            suspects = yield from (self._first() if self._ranges is None else self._again(published, remembered))
            suspects.difference_update(self._published)
            vanished, misplaced = yield from self._named(suspects)
            is_complete = True
        finally:
            self._is_running = False
            if not is_complete:
                self.forget()
        self._remembered, self._copied = array("q"), set()
        keys = {hash(copy.key) for copy in vanished}
        return SweepResult(
            keys=self._keys + len(keys), vanished=vanished, misplaced=misplaced, was_remembered=keys <= remembered
        )

    def _first(self) -> Generator[None, None, set[int]]:
        suspects: set[int] = set()
        self._copied, self._keys, checked = set(), 0, 0
        with Comparison(KEYS) as comparison:
            for messages in self._topic():
                comparison.take_records(messages)
                yield
            yield from self._read_table(comparison)
            for living, vanished, copied in comparison.vanished():
                suspects |= vanished
                self._copied |= copied
                self._keys += living
                checked += living + len(vanished)
                if checked >= _SLICE:
                    checked = 0
                    yield
        return suspects

    def _read_table(self, comparison: Comparison) -> Generator[None]:
        plan = self._plan
        if not plan.tie_breakers or plan.connector.suffix or not plan.kind.is_table:  # no order, no ranges
            for keys in living_keys(self._server, self._plan):
                comparison.take_numbers(map(hash, keys))
            return
        ranges: list[KeyRange] = []
        for key_range in KeyRanges(self._server, self._plan).read():
            comparison.take_numbers(key_range.numbers)
            ranges.append(key_range)
            yield
        self._ranges = ranges

    def _again(self, published: dict[int, bool], remembered: set[int]) -> Generator[None, None, set[int]]:
        assert self._ranges is not None
        reader = KeyRanges(self._server, self._plan)
        suspects = remembered | {number for number, is_alive in published.items() if is_alive}
        ranges: list[KeyRange] = []
        for former in self._ranges:
            if reader.is_unchanged(former):
                ranges.append(former)
            else:
                suspects.update(former.numbers)
                for part in reader.read(former.low, former.high):
                    ranges.append(part)
                    yield
            yield
        self._ranges = ranges
        suspects.difference_update(number for number, is_alive in published.items() if not is_alive)
        for part in ranges if suspects else ():
            suspects.difference_update(part.numbers)
        self._keys = sum(len(part.numbers) for part in ranges)
        return suspects

    def _named(self, suspects: set[int]) -> Generator[None, None, tuple[tuple[Copy, ...], tuple[Copy, ...]]]:
        """Return the living records of suspected keys, and misplaced copies of other keys."""
        numbers = suspects | self._copied
        newest: dict[tuple[bytes, int], int | None] = {}
        for messages in self._topic() if numbers else ():
            newest.update(newest_stamps(messages, lambda key: hash(key) in numbers))
            yield
        vanished = tuple(
            Copy(key, part) for (key, part), stamp in newest.items() if stamp is not None and hash(key) in suspects
        )
        living = {place: stamp for place, stamp in newest.items() if hash(place[0]) not in suspects}
        return vanished, tuple(misplaced(living, self._home_of_key, int(time.time() * 1000)))

    def _topic(self) -> Iterator[list[Message]]:
        with TopicReader(self._kafka, self._plan.topic, large_buffer=False) as topic:
            yield from topic.read_to(topic.ends(), limit=_SLICE, pause=_PAUSE)


def newest_stamps(
    messages: Iterable[Message], is_requested: Callable[[bytes], bool]
) -> Iterator[tuple[tuple[bytes, int], int | None]]:
    """Yield key and partition of each requested key's record, with its timestamp as `removal.misplaced` takes it."""
    for message in messages:
        key, partition = message.key(), message.partition()
        if isinstance(key, bytes) and partition is not None and is_requested(key):
            kind, stamp = message.timestamp()
            is_alive = message.value() is not None
            yield (key, partition), (stamp if kind == TIMESTAMP_CREATE_TIME else -1) if is_alive else None
