"""Decides if a key stays different, or only until the source has caught up; the outcome of a verification. Pure.

Both sides change while they are read. The order of four steps makes a result certain (decision 0020): (1) the topic's
end is noted, (2) the stored offset of the source is read, (3) the table is read in one snapshot, (4) the topic is read
to its end. A newest record from before (1) was written by a poll whose snapshot is older than that of (3). If the row
differs from it, the row has changed in between. If the offset of (2) covers that change, the source has published it
before (2), and (4) would have shown that record. It did not: the difference stays. A row that the offset does not cover
is *pending*, a key with a record after (1) is *changing*; both are checked again. Where no source runs, and none has
stored an offset, a difference stays: nothing is on its way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from compactory.read.digest import DirectoryDigest

__all__ = [
    "Difference",
    "Digests",
    "Finding",
    "Outcome",
    "Progress",
    "RecordFlag",
    "Row",
    "Rules",
    "TopicRecord",
    "check",
    "ignore_progress",
]


class Finding(Enum):
    """The result for one key."""

    EQUAL = "equal"
    MISSING = "missing"
    """The table has the key, lookups don't find it."""
    EXTRA = "extra"
    """Lookups find the key, the table does not have it."""
    DIFFERENT = "different"
    PENDING = "pending"
    """The row has changed, and the source has not polled it yet."""
    CHANGING = "changing"
    """A record was written while the table was read."""
    UNREADABLE = "unreadable"
    """The row can't be converted, so its record is unknown."""

    @property
    def is_final_difference(self) -> bool:
        """Return True for a difference that the source will not remove."""
        return self in {Finding.MISSING, Finding.EXTRA, Finding.DIFFERENT}

    @property
    def is_open(self) -> bool:
        """Return True if the key must be checked again."""
        return self in {Finding.PENDING, Finding.CHANGING}


class Row:
    """Flags of a row of the table, as bits. Plain numbers, because every row is checked."""

    DUE: Final = 1
    """The stored offset does not cover it."""
    ABSENT: Final = 2
    """Its key does not belong in the topic: deactivated, or deleted."""
    OPTIONAL: Final = 4
    """Older than ``timestamp.initial``: not in a first load."""
    UNREADABLE: Final = 8


class RecordFlag:
    """Flags of a record of the topic, as bits."""

    LATE: Final = 1
    """Written after the topic's end was noted."""
    TOMBSTONE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The behaviour of a connector for a topic."""

    removes: bool = True
    """Keys that the table lacks are removed."""
    updates: bool = True
    """A row that changes is sent again."""
    sweeps_later: bool = False
    """A sweep is still due."""
    loads: bool = False
    """A source runs that has not stored an offset yet: all is still to come."""


def check(rows: Iterable[tuple[bytes, int]], record: tuple[bytes, int] | None, rules: Rules) -> Finding:
    """Return the finding for a key with these rows, one of which made its record, and its newest record.

    A row or record is a fingerprint of the value, and flags.
    """
    rows = list(rows)
    flags = 0
    for _, row_flags in rows:
        flags |= row_flags
    if flags & Row.UNREADABLE:
        return Finding.UNREADABLE
    finding = _compare([row for row in rows if not row[1] & Row.ABSENT], record, rules)
    if not finding.is_final_difference:
        return finding
    if record is not None and record[1] & RecordFlag.LATE:
        return Finding.CHANGING
    if flags & Row.DUE or rules.loads or (finding is Finding.EXTRA and rules.sweeps_later):
        return Finding.PENDING
    return finding


def _compare(living: list[tuple[bytes, int]], record: tuple[bytes, int] | None, rules: Rules) -> Finding:
    if record is None or record[1] & RecordFlag.TOMBSTONE:
        is_required = any(not flags & Row.OPTIONAL for _, flags in living)
        return Finding.MISSING if is_required else Finding.EQUAL
    if any(value == record[0] for value, _ in living):
        return Finding.EQUAL
    if living:
        return Finding.DIFFERENT if rules.updates else Finding.EQUAL
    return Finding.EXTRA if rules.removes else Finding.EQUAL


Progress: TypeAlias = Callable[[str, int], None]
"""Takes what is being read, and how many rows or records of it were read."""


def ignore_progress(_reading: str, _count: int) -> None:
    """Show no progress."""


class TopicRecord(NamedTuple):
    """A record of the topic."""

    key: bytes
    value: bytes | None
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key that stays different. ``expected`` None: the table does not have it."""

    finding: Finding
    key: bytes
    expected: bytes | None = field(repr=False)
    stored: TopicRecord | None = field(repr=False)
    """The newest record, tombstones included; None: the topic never had one, or compaction removed it."""
    partitions: tuple[int, ...] = ()
    """The partitions that have the key with a value: several after a change of partitioner or partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """Digests of the table's records and of those that lookups find; see ``compactory.read.digest``."""

    table: DirectoryDigest
    topic: DirectoryDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of comparing a topic with the tables that are published to it."""

    topic: str
    tables: tuple[str, ...]
    expected: int
    """Keys that the table has."""
    stored: int
    """Keys that lookups find."""
    findings: Counter[Finding]
    differences: tuple[Difference, ...]
    """The first ones, with their values."""
    doubled: int
    """Number of keys that live in several partitions of the topic."""
    sources: tuple[str, ...]
    """Sources of the connector that run, in words."""
    paused: bool
    """An operator has paused the connector."""
    polled: bool
    """True if the offsets topic has an offset of every table."""
    rounds: int
    """Number of times that keys without a verdict were checked again."""
    seconds: float
    unreadable: tuple[str, ...] = ()
    """Why the keys of the first such rows can't be made."""
    notes: tuple[str, ...] = ()
    digests: Digests | None = None

    @property
    def different(self) -> int:
        """The number of keys that stay different."""
        return sum(count for finding, count in self.findings.items() if finding.is_final_difference)

    @property
    def open(self) -> int:
        """The number of keys without a verdict: not polled yet, or being written."""
        return sum(count for finding, count in self.findings.items() if finding.is_open)

    @property
    def unsure(self) -> bool:
        """Return True if there are rows that can't be converted, so that their records are unknown."""
        return bool(self.findings[Finding.UNREADABLE] or self.unreadable)

    @property
    def equal(self) -> bool:
        """Return True if lookups find all rows of the table and nothing else."""
        return not (self.different or self.open or self.unsure)
