"""When a key differs for good, and not only because it is on its way. Pure.

Both sides change while they are read, so that no two looks are of one moment. The order of four steps makes a result
certain (decision 0020): (1) the topic's end is noted, (2) the offset that the source has stored is read, (3) the table
is read in one snapshot, (4) the topic is read to its end. A newest record from before (1) was written by a poll whose
snapshot is older than that of (3). If the row differs from it, the row has changed in between. If the offset of (2)
covers that change, the source has published it before (2), and (4) would have shown that record. It did not: the
difference will stay. Whatever the offset does not cover is *pending*, what has a record behind (1) is *changing*; both
are looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

__all__ = ["Finding", "Row", "Rules", "Stored", "check"]


class Finding(Enum):
    """The result for one key."""

    EQUAL = "equal"
    MISSING = "missing"
    """The table has it, lookups don't find it."""
    EXTRA = "extra"
    """Lookups find it, the table does not have it."""
    DIFFERENT = "different"
    PENDING = "pending"
    """The table has changed, and the source has not polled that yet."""
    CHANGING = "changing"
    """A record came while the table was looked at."""
    UNREADABLE = "unreadable"
    """The row can't be converted, so nobody knows what its record should be."""

    @property
    def stays(self) -> bool:
        """Whether it is a difference that nothing will mend by itself."""
        return self in {Finding.MISSING, Finding.EXTRA, Finding.DIFFERENT}

    @property
    def open(self) -> bool:
        """Whether another look may say more."""
        return self in {Finding.PENDING, Finding.CHANGING}


class Row:
    """Facts about a row of the table besides its record, as bits. Plain numbers, because every row is checked."""

    DUE: Final = 1
    """The stored offset does not cover it."""
    ABSENT: Final = 2
    """Its key does not belong in the topic: deactivated, or deleted."""
    OPTIONAL: Final = 4
    """Older than ``timestamp.initial``: a first load leaves it out."""
    UNREADABLE: Final = 8


class Stored:
    """Facts about a record of the topic besides its value, as bits."""

    LATE: Final = 1
    """It came after the topic's end had been noted."""
    TOMBSTONE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The connector's promises about a topic."""

    removes: bool = True
    """Keys that the table lacks do not stay."""
    updates: bool = True
    """A row that changes is sent again."""
    sweeps_later: bool = False
    """The source has still to remove keys that the table lacks."""


def check(rows: Iterable[tuple[bytes, int]], record: tuple[bytes, int] | None, rules: Rules) -> Finding:
    """The result for a key with these rows, any of which may be its record's, and its newest record.

    Rows and record are a fingerprint of the value, and flags.
    """
    rows = list(rows)
    flags = 0
    for _, each in rows:
        flags |= each
    if flags & Row.UNREADABLE:
        return Finding.UNREADABLE
    kind = _kind([row for row in rows if not row[1] & Row.ABSENT], record, rules)
    if not kind.stays:
        return kind
    if record is not None and record[1] & Stored.LATE:
        return Finding.CHANGING
    if flags & Row.DUE or (kind is Finding.EXTRA and rules.sweeps_later):
        return Finding.PENDING
    return kind


def _kind(living: list[tuple[bytes, int]], record: tuple[bytes, int] | None, rules: Rules) -> Finding:
    if record is None or record[1] & Stored.TOMBSTONE:
        wanted = any(not flags & Row.OPTIONAL for _, flags in living)
        return Finding.MISSING if wanted else Finding.EQUAL
    if any(value == record[0] for value, _ in living):
        return Finding.EQUAL
    if living:
        return Finding.DIFFERENT if rules.updates else Finding.EQUAL
    return Finding.EXTRA if rules.removes else Finding.EQUAL
