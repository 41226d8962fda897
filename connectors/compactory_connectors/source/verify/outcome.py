"""The outcome of a verification, and its progress, for people and programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from compactory.read.digest import DirectoryDigest

from .checker import Finding

__all__ = ["Difference", "Digests", "Outcome", "Progress", "TopicRecord", "ignore_progress"]

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
