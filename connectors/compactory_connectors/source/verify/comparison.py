"""Compares the records of a topic with the rows of its table, by fingerprints.

It serves verifications (:meth:`Comparison.compare`), sweeps, which remove keys (:meth:`Comparison.vanished`), and
loads, which send lacking records (:meth:`Comparison.lacking`; their rows are not kept).

64-bit numbers stand for keys, 64 bits for values, or with digests 128: the chance that one difference among 10 M keys
goes unnoticed is below 1 in 100,000. A record takes 27 bytes at most and a row 25, on disk beyond 200 MB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from struct import Struct
from types import MappingProxyType
from typing import Self, TypeVar

from compactory.kafka.client import Kafka, Message
from compactory.read.digest import DirectoryDigest, RangeDigest, record_digest
from compactory_connectors.kafka.producer_record import ProducerRecord
from compactory_connectors.kafka.topic_reader import TopicReader, newest_rank

from ..planning.table_plan import TablePlan
from ..polling.reader import RecordBatch
from .checker import Digests, Finding, RecordFlag, Row, Rules, check
from .spool import BUCKETS, Spool
from .table_side import Expected

__all__ = ["DIGESTED", "KEYS", "MOST_COMPARED", "QUICK", "Comparison", "Fingerprint", "Tally"]

MOST_COMPARED = 2_000_000
"""The most records of a topic that a load is compared with unless an operator orders it: some 300 MB."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Numbers and digests for keys and records. ``row`` packs both and flags; ``record`` partition and time as well."""

    key: Callable[[bytes], int]
    value: Callable[[bytes, bytes], int | bytes]
    row: Struct
    record: Struct

    @property
    def equal_bytes(self) -> int:
        """The number of first bytes that are equal if a row and its record agree; the flags follow."""
        return self.row.size - 1


_PARTITION_AND_TIME = Struct("<Hq")
_MASK = BUCKETS - 1
_AMBIGUOUS = object()
"""In place of a value: partitions of the topic have different values."""


def _number(key: bytes) -> int:
    return int.from_bytes(sha256(key, usedforsecurity=False).digest()[:8], "big", signed=True)


KEYS = Fingerprint(hash, lambda _key, _value: b"", Struct("<q0sB"), Struct("<q0sBHq"))
"""Fingerprints of keys only; the numbers are valid in this process."""

QUICK = Fingerprint(hash, lambda _key, value: hash(value), Struct("<qqB"), Struct("<qqBHq"))
"""Fingerprints with numbers that are valid in this process."""

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
        """The number of keys without a verdict that are not among the suspects."""
        tracked = sum(finding.is_open for finding in self.suspects.values())
        return sum(count for finding, count in self.findings.items() if finding.is_open) - tracked


class Comparison:
    """Takes rows and records and compares them. Owned by one thread; a context manager."""

    def __init__(self, fingerprint: Fingerprint = QUICK) -> None:
        self._fingerprint = fingerprint
        self._rows = Spool(fingerprint.row.size)
        self._records = Spool(fingerprint.record.size)
        self._partitions: set[int] = set()
        self._flags_at = fingerprint.equal_bytes
        self._last_marks: dict[int, int | None] = {}

    @classmethod
    def with_topic(cls, kafka: Kafka, topic: str) -> Self:
        """Return a comparison for a load, with the topic's records: about 150 bytes of memory a key."""
        comparison = cls()
        with TopicReader(kafka, topic) as reader:
            for messages in reader.read_to(reader.ends()):
                comparison.take_records(messages)
        return comparison

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()
        self._records.close()

    def take_rows(self, rows: Iterable[Expected]) -> None:
        """Take rows of the table, in any order."""
        number_of, value_of = self._fingerprint.key, self._fingerprint.value
        buckets, pack = self._rows.buckets, self._fingerprint.row.pack
        for key, value, flags, _ in rows:
            number = number_of(key)
            buckets[number & _MASK] += pack(number, value_of(key, value or b""), flags)
        self._rows.settle()

    def take_numbers(self, numbers: Iterable[int]) -> None:
        """Take keys of the table, as the numbers of `KEYS`."""
        buckets, pack = self._rows.buckets, self._fingerprint.row.pack
        for number in numbers:
            buckets[number & _MASK] += pack(number, b"", 0)
        self._rows.settle()

    def take_records(self, records: Iterable[Message], ends: Mapping[int, int] = MappingProxyType({})) -> None:
        """Take records of the topic, those of a partition in its order; ``ends`` are of before the table was read."""
        number_of, value_of = self._fingerprint.key, self._fingerprint.value
        buckets, pack = self._records.buckets, self._fingerprint.record.pack
        for message in records:
            key, value, partition = message.key(), message.value(), message.partition() or 0
            if not isinstance(key, bytes):
                continue
            flags = RecordFlag.LATE if (message.offset() or 0) >= ends.get(partition, 0) else 0
            if value is None:
                flags |= RecordFlag.TOMBSTONE
            number = number_of(key)
            mark = value_of(key, value or b"")
            self._partitions.add(partition)
            buckets[number & _MASK] += pack(number, mark, flags, partition, message.timestamp()[1])
        self._records.settle()

    def compare(self, rules: Rules, most_suspects: int) -> Tally:
        """Check every key; at most ``most_suspects`` are kept by number, the others are only counted."""
        tally = Tally()
        if self._fingerprint is DIGESTED:
            tally.digests = Digests(table=DirectoryDigest(), topic=DirectoryDigest())
        for rows, records in zip(self._rows.drain(), self._records.drain(), strict=True):
            self._compare(rows, records, rules, most_suspects, tally)
        return tally

    def vanished(self) -> Iterator[tuple[int, set[int], set[int]]]:
        """Yield by bucket the number of living keys that have rows, living keys without a row, and keys with copies.

        A key lives if any partition has it with a value; it has copies if several partitions have.
        """
        flags = self._flags_at
        for rows, records in zip(self._rows.drain(), self._records.drain(), strict=True):
            newest = {(entry[:8], entry[flags + 1 : flags + 3]): entry[flags] for entry in records}
            living = Counter(key for (key, _), flag in newest.items() if not flag & RecordFlag.TOMBSTONE)
            vanished = living.keys() - {entry[:8] for entry in rows}
            copied = (key for key, count in living.items() if count > 1)
            yield len(living) - len(vanished), set(map(_number_in, vanished)), set(map(_number_in, copied))

    def expect(self, records: Iterable[ProducerRecord]) -> None:
        """Take all records of a load in their order beforehand: only the last one of a key is sent."""
        self._last_marks.update((hash(record[0]), _mark(record[1])) for record in records)

    def lacking(self, records: Iterable[R]) -> list[R]:
        """Return the records that the topic lacks, and take them for sent.

        A record whose key has different values in several partitions is lacking.
        """
        newest, lacking = self.newest, list[R]()
        for record in records:
            if record[0] is not None:
                number, mark = hash(record[0]), _mark(record[1])
                if mark != self._last_marks.get(number, mark) or newest.get(number) == mark:
                    continue
                newest[number] = mark
            lacking.append(record)
        return lacking

    def without_known(self, batch: RecordBatch, plan: TablePlan) -> RecordBatch:
        """Return a batch without the records that the topic has; the whole batch if a key may be in several topics."""
        if plan.rows.routed:
            return batch
        records = self.lacking(batch.records)
        sent = {(record[0], record[1]) for record in records} if batch.removals else set()
        removals = tuple(removal for removal in batch.removals if (removal.key, removal.value) in sent)
        return replace(batch, records=records, removals=removals)

    @cached_property
    def newest(self) -> dict[int, object]:
        """Each key's value in the topic, as the numbers of `QUICK`; None for a tombstone."""
        newest: dict[int, object] = {}
        unpack = self._fingerprint.record.unpack
        for records in self._records.drain():
            marks: dict[tuple[int, int], object] = {}
            for number, mark, flags, partition, _ in map(unpack, records):
                marks[number, partition] = None if flags & RecordFlag.TOMBSTONE else mark
            for (number, _), mark in marks.items():
                newest[number] = mark if newest.get(number, mark) == mark else _AMBIGUOUS
        self._records.close()
        return newest

    def _compare(self, rows: list[bytes], records: list[bytes], rules: Rules, most_suspects: int, tally: Tally) -> None:
        newest, doubled = self._newest_of(records)
        flags = self._flags_at
        absent = Row.ABSENT | Row.UNREADABLE
        stored = {entry[:flags] for entry in newest.values() if not entry[flags] & RecordFlag.TOMBSTONE}
        expected = {entry[:flags] for entry in rows if not entry[flags] & absent}
        tally.expected += len(expected)
        tally.stored += len(stored)
        tally.doubled += doubled
        if tally.digests is not None:
            _add(tally.digests.table, expected)
            _add(tally.digests.topic, stored)
        unequal = {entry[:8] for entry in stored ^ expected}
        unequal |= {entry[:8] for entry in rows if entry[flags] & Row.UNREADABLE}
        if not unequal:
            return
        by_key: dict[bytes, list[tuple[bytes, int]]] = {key: [] for key in unequal}
        for entry in rows:
            if entry[:8] in by_key:
                by_key[entry[:8]].append((entry[8:flags], entry[flags]))
        for key, key_rows in by_key.items():
            record = newest.get(key)
            finding = check(key_rows, (record[8:flags], record[flags]) if record is not None else None, rules)
            if finding is Finding.EQUAL:
                continue
            tally.findings[finding] += 1
            if len(tally.suspects) < most_suspects:
                tally.suspects[_number_in(key)] = finding

    def _newest_of(self, records: list[bytes]) -> tuple[dict[bytes, bytes], int]:
        """Return each key's newest record, and the number of keys that live in several partitions."""
        if len(self._partitions) < 2:
            return {entry[:8]: entry for entry in records}, 0
        flags = self._flags_at
        by_partition = {(entry[:8], entry[flags + 1 : flags + 3]): entry for entry in records}
        newest: dict[bytes, bytes] = {}
        living: Counter[bytes] = Counter()
        for (key, _), entry in by_partition.items():
            if not entry[flags] & RecordFlag.TOMBSTONE:
                living[key] += 1
            if key not in newest or self._rank(entry) > self._rank(newest[key]):
                newest[key] = entry
        return newest, sum(count > 1 for count in living.values())

    def _rank(self, record: bytes) -> tuple[int, int]:
        partition, timestamp = _PARTITION_AND_TIME.unpack_from(record, self._flags_at + 1)
        return newest_rank(timestamp, partition)


def _mark(value: bytes | None) -> int | None:
    return None if value is None else hash(value)


def _number_in(entry: bytes) -> int:
    return int.from_bytes(entry[:8], "little", signed=True)


def _add(digest: DirectoryDigest, entries: Iterable[bytes]) -> None:
    """Add fingerprints to the digests of their ranges."""
    by_range: dict[int, list[bytes]] = {}
    for entry in entries:
        by_range.setdefault(entry[7], []).append(entry[8:])
    for number, marks in by_range.items():
        digest.add(number, RangeDigest.of(marks))
