"""The outcome of a verification, for people and programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from compactory.read.digest import DirectoryDigest

from .checker import Finding

__all__ = ["Difference", "Digests", "Found", "Outcome"]


class Found(NamedTuple):
    """A record of the topic."""

    key: bytes
    value: bytes | None
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key that differs for good. ``expected`` None: the table does not have it."""

    finding: Finding
    key: bytes
    expected: bytes | None = field(repr=False)
    found: Found | None = field(repr=False)
    """The newest record, tombstones included; None: the topic never had one, or compaction took it."""
    partitions: tuple[int, ...] = ()
    """Where the topic has the key with a value: several, where it was written by another partitioner or before the
    topic grew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """Of what the table should have published, and of what lookups find; see ``compactory.read.digest``."""

    table: DirectoryDigest
    topic: DirectoryDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A topic beside the tables that are published to it."""

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
    """Keys that live in several partitions of the topic."""
    sources: tuple[str, ...]
    """Sources of the connector that run, in words."""
    paused: bool
    """An operator has paused the connector."""
    polled: bool
    """Whether the offsets topic has an offset of every table."""
    rounds: int
    """How often keys that were on their way were looked at again."""
    seconds: float
    unreadable: tuple[str, ...] = ()
    """Rows of which not even the key is known: the reason of the first ones."""
    notes: tuple[str, ...] = ()
    digests: Digests | None = None

    @property
    def different(self) -> int:
        """Keys that differ for good."""
        return sum(count for finding, count in self.findings.items() if finding.stays)

    @property
    def open(self) -> int:
        """Keys on which there is no verdict: on their way, or being written."""
        return sum(count for finding, count in self.findings.items() if finding.open)

    @property
    def unsure(self) -> bool:
        """Whether there are rows that can't be converted, so that nobody knows what lookups should find."""
        return bool(self.findings[Finding.UNREADABLE] or self.unreadable)

    @property
    def equal(self) -> bool:
        """Whether lookups see what the table has, all of it."""
        return not (self.different or self.open or self.unsure)
