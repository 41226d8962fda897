"""Every key of a table and its topic compared by fingerprints: which ones need a closer look. No value is kept.

Keys go by 64-bit numbers and values by 64 bits, or with digests by 128: the chance that one difference among 10 M keys
goes unnoticed is below 1 in 100,000. About 60 bytes a key, on disk beyond 200 MB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from struct import Struct
from types import TracebackType
from typing import Self, TypeAlias

from compactory.digest import DirectoryDigest, RangeDigest, record_digest
from compactory.kafka import Message

from .judgement import Finding, Row, Rules, Stored, judge
from .outcome import Digests
from .spool import BUCKETS, Spool
from .table_side import Expected

__all__ = ["Fingerprint", "FirstPass", "Tally", "digested", "quick"]

Fingerprint: TypeAlias = Callable[[bytes, bytes], tuple[int, bytes]]
"""Key and value → a number for the key, 8 or 16 bytes for both."""

_ROW = Struct("<q16sB")  # key, value, flags
_RECORD = Struct("<q16sBHq")  # key, value, flags, partition, timestamp
_SAME = 24  # bytes that are equal where a row and its record agree
_FLAGS = _SAME
_PLACE = slice(25, 27)
_MASK = BUCKETS - 1


def quick(key: bytes, value: bytes) -> tuple[int, bytes]:
    """Fingerprints of this process alone."""
    return hash(key), hash(value).to_bytes(8, "little", signed=True)


def digested(key: bytes, value: bytes) -> tuple[int, bytes]:
    """Fingerprints that digests are made of; the range of a key is in the number's first byte."""
    number = int.from_bytes(sha256(key, usedforsecurity=False).digest()[:8], "big", signed=True)
    return number, record_digest(key, value)


@dataclass(slots=True, kw_only=True)
class Tally:
    """What the first pass counted. ``suspects`` are keys that are not equal, by their numbers."""

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


class FirstPass:
    """Takes both sides in and compares them. Owned by one thread; a context manager."""

    def __init__(self, fingerprint: Fingerprint = quick) -> None:
        self._fingerprint = fingerprint
        self._rows = Spool(_ROW.size)
        self._records = Spool(_RECORD.size)
        self._partitions: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rows.close()
        self._records.close()

    def take_rows(self, rows: Iterable[Expected]) -> None:
        """Rows of the table, in any order."""
        fingerprint, buckets, pack = self._fingerprint, self._rows.buckets, _ROW.pack
        for key, value, flags, _ in rows:
            number, mark = fingerprint(key, value or b"")
            buckets[number & _MASK] += pack(number, mark, flags)
        self._rows.settle()

    def take_records(self, records: Iterable[Message], marks: Mapping[int, int]) -> None:
        """Records of the topic, those of a partition in its order; ``marks`` are the ends that were noted before."""
        fingerprint, buckets, pack = self._fingerprint, self._records.buckets, _RECORD.pack
        for message in records:
            key, value = message.key(), message.value()
            partition, offset = message.partition() or 0, message.offset() or 0
            flags = Stored.LATE.value if offset >= marks.get(partition, 0) else 0
            if value is None:
                flags |= Stored.TOMBSTONE.value
            number, mark = fingerprint(key or b"", value or b"")
            self._partitions.add(partition)
            buckets[number & _MASK] += pack(number, mark, flags, partition, message.timestamp()[1])
        self._records.settle()

    def compare(self, rules: Rules, most: int) -> Tally:
        """Judge every key; ``most`` suspects are kept by number, the others are only counted."""
        tally = Tally()
        if self._fingerprint is digested:
            tally.digests = Digests(table=DirectoryDigest(), topic=DirectoryDigest())
        for rows, records in zip(self._rows.drain(), self._records.drain(), strict=True):
            self._compare(rows, records, rules, most, tally)
        return tally

    def _compare(self, rows: list[bytes], records: list[bytes], rules: Rules, most: int, tally: Tally) -> None:
        newest, doubled = self._newest(records)
        stored = {each[:_SAME] for each in newest.values() if not each[_FLAGS] & Stored.TOMBSTONE}
        wanted = {each[:_SAME] for each in rows if not each[_FLAGS] & (Row.ABSENT | Row.UNREADABLE)}
        tally.expected += len(wanted)
        tally.stored += len(stored)
        tally.doubled += doubled
        if tally.digests is not None:
            _add(tally.digests.table, wanted)
            _add(tally.digests.topic, stored)
        unlike = {each[:8] for each in stored ^ wanted} | {each[:8] for each in rows if each[_FLAGS] & Row.UNREADABLE}
        if not unlike:
            return
        by_key: dict[bytes, list[tuple[bytes, int]]] = {key: [] for key in unlike}
        for each in rows:
            with suppress(KeyError):
                by_key[each[:8]].append((each[8:_SAME], each[_FLAGS]))
        for key, its in by_key.items():
            record = newest.get(key)
            finding = judge(its, (record[8:_SAME], record[_FLAGS]) if record is not None else None, rules)
            if finding is Finding.EQUAL:
                continue
            tally.findings[finding] += 1
            if len(tally.suspects) < most:
                tally.suspects[int.from_bytes(key, "little", signed=True)] = finding

    def _newest(self, records: list[bytes]) -> tuple[dict[bytes, bytes], int]:
        """Each key's newest record, of several partitions the one that lookups find; how many keys live in several."""
        if len(self._partitions) < 2:
            return {each[:8]: each for each in records}, 0
        by_partition = {(each[:8], each[_PLACE]): each for each in records}
        newest: dict[bytes, bytes] = {}
        living: Counter[bytes] = Counter()
        for (key, _), each in by_partition.items():
            living[key] += not each[_FLAGS] & Stored.TOMBSTONE
            if key not in newest or _age(each) > _age(newest[key]):
                newest[key] = each
        return newest, sum(count > 1 for count in living.values())


def _age(record: bytes) -> tuple[int, int]:
    _, _, _, partition, timestamp = _RECORD.unpack(record)
    return timestamp, partition


def _add(digest: DirectoryDigest, entries: Iterable[bytes]) -> None:
    """Add fingerprints to the digests of their ranges."""
    by_range: dict[int, list[bytes]] = {}
    for each in entries:
        by_range.setdefault(each[7], []).append(each[8:_SAME])
    for number, marks in by_range.items():
        digest.add(number, RangeDigest.of(marks))
