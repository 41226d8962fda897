"""Compares what a topic holds with the rows of its table, by fingerprints: the one engine of all that compares.

It takes the records of the topic and the rows of the table, and is asked in one of three ways: what a verification
finds (:meth:`Comparison.compare`), which keys a sweep has to remove (:meth:`Comparison.vanished`), and which records a
load has to send (:meth:`Comparison.lacking`; its rows come one after the other, and are not kept).

64-bit numbers stand for keys, 64 bits for values, or with digests 128: the chance that one difference among 10 M keys
goes unnoticed is below 1 in 100,000. A record takes 27 bytes at most and a row 25, on disk beyond 200 MB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from struct import Struct
from types import MappingProxyType
from typing import Self, TypeVar

from compactory.kafka.client import Kafka, Message
from compactory.read.digest import DirectoryDigest, RangeDigest, record_digest
from compactory_connectors.kafka.producer_record import ProducerRecord
from compactory_connectors.kafka.topic_reader import TopicReader

from ..planning.table_plan import TablePlan
from ..polling.record_batch import RecordBatch
from .checker import Finding, Row, Rules, Stored, check
from .outcome import Digests
from .spool import BUCKETS, Spool
from .table_side import Expected

__all__ = ["DIGESTED", "KEYS", "MOST_COMPARED", "QUICK", "Comparison", "Fingerprint", "Tally"]

MOST_COMPARED = 2_000_000
"""Records of a topic that a load is compared with unasked: some 300 MB."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Numbers and digests for keys and records. ``row`` packs both and flags; ``record`` partition and time as well."""

    key: Callable[[bytes], int]
    value: Callable[[bytes, bytes], int | bytes]
    row: Struct
    record: Struct

    @property
    def same(self) -> int:
        """Bytes at the beginning that are equal where a row and its record agree; the flags are behind them."""
        return self.row.size - 1


_AGE = Struct("<Hq")
_MASK = BUCKETS - 1
_UNLIKE = object()
"""In place of a value: partitions of the topic have different ones."""


def _number(key: bytes) -> int:
    return int.from_bytes(sha256(key, usedforsecurity=False).digest()[:8], "big", signed=True)


KEYS = Fingerprint(hash, lambda _key, _value: b"", Struct("<q0sB"), Struct("<q0sBHq"))
"""Numbers of this process alone, and nothing of values."""

QUICK = Fingerprint(hash, lambda _key, value: hash(value), Struct("<qqB"), Struct("<qqBHq"))
"""Numbers of this process alone."""

DIGESTED = Fingerprint(_number, record_digest, Struct("<q16sB"), Struct("<q16sBHq"))
"""The fingerprint for digests; the range of a key is the highest byte of its number."""

R = TypeVar("R", bound=ProducerRecord)


@dataclass(slots=True, kw_only=True)
class Tally:
    """The counts of a comparison. ``suspects`` are keys that are not equal, by their numbers."""

    expected: int = 0
    stored: int = 0
    doubled: int = 0
    findings: Counter[Finding] = field(default_factory=Counter)
    suspects: dict[int, Finding] = field(default_factory=dict)
    digests: Digests | None = None

    @property
    def untracked(self) -> int:
        """Keys without a verdict that are not among the suspects."""
        tracked = sum(finding.open for finding in self.suspects.values())
        return sum(count for finding, count in self.findings.items() if finding.open) - tracked


class Comparison:
    """Takes both sides in and compares them. Owned by one thread; a context manager."""

    def __init__(self, fingerprint: Fingerprint = QUICK) -> None:
        self._fingerprint = fingerprint
        self._rows = Spool(fingerprint.row.size)
        self._records = Spool(fingerprint.record.size)
        self._partitions: set[int] = set()
        self._same = fingerprint.same
        self._final: dict[int, int | None] = {}
        self.left_out = 0
        """Records that a load need not send."""

    @classmethod
    def with_topic(cls, kafka: Kafka, topic: str) -> Self:
        """For a load: what the topic holds, a number and 64 bits a key, about 150 bytes of memory."""
        made = cls()
        with TopicReader(kafka, topic) as reader:
            for messages in reader.read_to(reader.ends()):
                made.take_records(messages)
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()
        self._records.close()

    def take_rows(self, rows: Iterable[Expected]) -> None:
        """Rows of the table, in any order."""
        number_of, value_of = self._fingerprint.key, self._fingerprint.value
        buckets, pack = self._rows.buckets, self._fingerprint.row.pack
        for key, value, flags, _ in rows:
            number = number_of(key)
            buckets[number & _MASK] += pack(number, value_of(key, value or b""), flags)
        self._rows.settle()

    def take_numbers(self, numbers: Iterable[int]) -> None:
        """Keys of the table, as the numbers of `KEYS`."""
        buckets, pack = self._rows.buckets, self._fingerprint.row.pack
        for number in numbers:
            buckets[number & _MASK] += pack(number, b"", 0)
        self._rows.settle()

    def take_records(self, records: Iterable[Message], marks: Mapping[int, int] = MappingProxyType({})) -> None:
        """Records of the topic, those of a partition in its order; ``marks`` are the ends that were noted before."""
        number_of, value_of = self._fingerprint.key, self._fingerprint.value
        buckets, pack = self._records.buckets, self._fingerprint.record.pack
        for message in records:
            key, value, partition = message.key(), message.value(), message.partition() or 0
            if not isinstance(key, bytes):
                continue
            flags = Stored.LATE if (message.offset() or 0) >= marks.get(partition, 0) else 0
            if value is None:
                flags |= Stored.TOMBSTONE
            number = number_of(key)
            mark = value_of(key, value or b"")
            self._partitions.add(partition)
            buckets[number & _MASK] += pack(number, mark, flags, partition, message.timestamp()[1])
        self._records.settle()

    def compare(self, rules: Rules, most: int) -> Tally:
        """Check every key; ``most`` suspects are kept by number, the others are only counted."""
        tally = Tally()
        if self._fingerprint is DIGESTED:
            tally.digests = Digests(table=DirectoryDigest(), topic=DirectoryDigest())
        for rows, records in zip(self._rows.drain(), self._records.drain(), strict=True):
            self._compare(rows, records, rules, most, tally)
        return tally

    def vanished(self) -> Iterator[tuple[int, set[int], set[int]]]:
        """By bucket: how many keys of rows live in the topic, which keys do without a row, which in several partitions.

        A key lives where any partition has it with a value.
        """
        flags = self._same
        for rows, records in zip(self._rows.drain(), self._records.drain(), strict=True):
            places = {(each[:8], each[flags + 1 : flags + 3]): each[flags] for each in records}
            living = Counter(key for (key, _), its in places.items() if not its & Stored.TOMBSTONE)
            gone = living.keys() - {each[:8] for each in rows}
            several = (key for key, count in living.items() if count > 1)
            yield len(living) - len(gone), set(map(_number_in, gone)), set(map(_number_in, several))

    def expect(self, records: Iterable[ProducerRecord]) -> None:
        """Announce all records of a load in their order: of those with one key only the last counts.

        Needed where several rows have one key, as with a row that replaced another one.
        """
        self._final.update((hash(record[0]), _mark(record[1])) for record in records)

    def lacking(self, records: Iterable[R]) -> list[R]:
        """The records that the topic lacks; without ``updates`` those whose key has no value there.

        They count as sent from now on. A record that partitions have with different values is lacking.
        """
        newest, found = self._newest, list[R]()
        for record in records:
            if record[0] is not None:
                number, mark = hash(record[0]), _mark(record[1])
                known, final = newest.get(number), self._final.get(number, mark)
                if mark != final or known == mark:
                    self.left_out += 1
                    continue
                newest[number] = mark
            found.append(record)
        return found

    def without_known(self, batch: RecordBatch, plan: TablePlan) -> RecordBatch:
        """A batch without the records that the topic has; whole where a key may be in several topics."""
        if plan.rows.routed:
            return batch
        records = self.lacking(batch.records)
        sent = {(record[0], record[1]) for record in records} if batch.removals else set()
        removals = tuple(each for each in batch.removals if (each.key, each.value) in sent)
        return replace(batch, records=records, removals=removals)

    def values(self) -> Mapping[int, object]:
        """Return each key's value in the topic, as the numbers of `QUICK`; None for a tombstone."""
        return self._newest

    def living(self) -> set[int]:
        """Numbers of the keys that any partition had with a value, before records were sent."""
        return {number for number, mark in self._newest.items() if mark is not None}

    @cached_property
    def _newest(self) -> dict[int, object]:
        """The fingerprint of each key's value in the topic; None for a tombstone."""
        found: dict[int, object] = {}
        unpack = self._fingerprint.record.unpack
        for records in self._records.drain():
            places: dict[tuple[int, int], object] = {}
            for number, mark, flags, partition, _ in map(unpack, records):
                places[number, partition] = None if flags & Stored.TOMBSTONE else mark
            for (number, _), mark in places.items():
                found[number] = mark if found.get(number, mark) == mark else _UNLIKE
        self._records.close()
        return found

    def _compare(self, rows: list[bytes], records: list[bytes], rules: Rules, most: int, tally: Tally) -> None:
        newest, doubled = self._newest_of(records)
        same, gone, unknown = self._same, Stored.TOMBSTONE, Row.UNREADABLE
        absent = Row.ABSENT | unknown
        stored = {each[:same] for each in newest.values() if not each[same] & gone}
        wanted = {each[:same] for each in rows if not each[same] & absent}
        tally.expected += len(wanted)
        tally.stored += len(stored)
        tally.doubled += doubled
        if tally.digests is not None:
            _add(tally.digests.table, wanted)
            _add(tally.digests.topic, stored)
        unlike = {each[:8] for each in stored ^ wanted} | {each[:8] for each in rows if each[same] & unknown}
        if not unlike:
            return
        by_key: dict[bytes, list[tuple[bytes, int]]] = {key: [] for key in unlike}
        for each in rows:
            with suppress(KeyError):
                by_key[each[:8]].append((each[8:same], each[same]))
        for key, its in by_key.items():
            record = newest.get(key)
            finding = check(its, (record[8:same], record[same]) if record is not None else None, rules)
            if finding is Finding.EQUAL:
                continue
            tally.findings[finding] += 1
            if len(tally.suspects) < most:
                tally.suspects[_number_in(key)] = finding

    def _newest_of(self, records: list[bytes]) -> tuple[dict[bytes, bytes], int]:
        """Each key's newest record, of several partitions the one that lookups find; how many keys live in several."""
        if len(self._partitions) < 2:
            return {each[:8]: each for each in records}, 0
        flags = self._same
        by_partition = {(each[:8], each[flags + 1 : flags + 3]): each for each in records}
        newest: dict[bytes, bytes] = {}
        living: Counter[bytes] = Counter()
        for (key, _), each in by_partition.items():
            living[key] += not each[flags] & Stored.TOMBSTONE
            if key not in newest or self._age(each) > self._age(newest[key]):
                newest[key] = each
        return newest, sum(count > 1 for count in living.values())

    def _age(self, record: bytes) -> tuple[int, int]:
        partition, timestamp = _AGE.unpack_from(record, self._same + 1)
        return timestamp, partition


def _mark(value: bytes | None) -> int | None:
    return None if value is None else hash(value)


def _number_in(entry: bytes) -> int:
    return int.from_bytes(entry[:8], "little", signed=True)


def _add(digest: DirectoryDigest, entries: Iterable[bytes]) -> None:
    """Add fingerprints to the digests of their ranges."""
    by_range: dict[int, list[bytes]] = {}
    for each in entries:
        by_range.setdefault(each[7], []).append(each[8:])
    for number, marks in by_range.items():
        digest.add(number, RangeDigest.of(marks))
