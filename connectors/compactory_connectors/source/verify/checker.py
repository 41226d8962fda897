"""Decides if a key stays different, or only until the source has caught up. Pure.

Both sides change while they are read. The order of four steps makes a result certain (decision 0020): (1) the topic's
end is noted, (2) the stored offset of the source is read, (3) the table is read in one snapshot, (4) the topic is read
to its end. A newest record from before (1) was written by a poll whose snapshot is older than that of (3). If the row
differs from it, the row has changed in between. If the offset of (2) covers that change, the source has published it
before (2), and (4) would have shown that record. It did not: the difference stays. A row that the offset does not cover
is *pending*, a key with a record after (1) is *changing*; both are checked again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

__all__ = ["Finding", "RecordFlag", "Row", "Rules", "check"]


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
    if flags & Row.DUE or (finding is Finding.EXTRA and rules.sweeps_later):
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
