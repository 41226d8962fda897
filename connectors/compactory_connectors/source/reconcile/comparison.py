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
from typing import Self

from compactory.kafka.client import Message
from compactory.lookup.digest import DirectoryDigest, RangeDigest, record_digest

from .checker import Finding, Row, Rules, Stored, judge
from .outcome import Digests
from .spool import BUCKETS, Spool
from .table_side import Expected

__all__ = ["DIGESTED", "QUICK", "Fingerprint", "FirstPass", "Tally"]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What stands for keys and records. ``row`` packs both and flags; ``record`` a partition and timestamp as well."""

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


def _number(key: bytes) -> int:
    return int.from_bytes(sha256(key, usedforsecurity=False).digest()[:8], "big", signed=True)


def _value(_key: bytes, value: bytes) -> int:
    return hash(value)


QUICK = Fingerprint(hash, _value, Struct("<qqB"), Struct("<qqBHq"))
"""Numbers of this process alone."""

DIGESTED = Fingerprint(_number, record_digest, Struct("<q16sB"), Struct("<q16sBHq"))
"""What digests are made of; the range of a key is the highest byte of its number."""


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

    def __init__(self, fingerprint: Fingerprint = QUICK) -> None:
        self._fingerprint = fingerprint
        self._rows = Spool(fingerprint.row.size)
        self._records = Spool(fingerprint.record.size)
        self._partitions: set[int] = set()
        self._same = fingerprint.same

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def take_records(self, records: Iterable[Message], marks: Mapping[int, int]) -> None:
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
        """Judge every key; ``most`` suspects are kept by number, the others are only counted."""
        tally = Tally()
        if self._fingerprint is DIGESTED:
            tally.digests = Digests(table=DirectoryDigest(), topic=DirectoryDigest())
        for rows, records in zip(self._rows.drain(), self._records.drain(), strict=True):
            self._compare(rows, records, rules, most, tally)
        return tally

    def _compare(self, rows: list[bytes], records: list[bytes], rules: Rules, most: int, tally: Tally) -> None:
        newest, doubled = self._newest(records)
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
            finding = judge(its, (record[8:same], record[same]) if record is not None else None, rules)
            if finding is Finding.EQUAL:
                continue
            tally.findings[finding] += 1
            if len(tally.suspects) < most:
                tally.suspects[int.from_bytes(key, "little", signed=True)] = finding

    def _newest(self, records: list[bytes]) -> tuple[dict[bytes, bytes], int]:
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


def _add(digest: DirectoryDigest, entries: Iterable[bytes]) -> None:
    """Add fingerprints to the digests of their ranges."""
    by_range: dict[int, list[bytes]] = {}
    for each in entries:
        by_range.setdefault(each[7], []).append(each[8:])
    for number, marks in by_range.items():
        digest.add(number, RangeDigest.of(marks))
