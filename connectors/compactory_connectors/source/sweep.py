"""Finds keys that a topic still has and its table has not, after a first load or on another server's history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .page import Reader, Record

__all__ = ["REMOVED_PERCENT", "SMALL", "deleted", "too_many", "vanished"]

REMOVED_PERCENT = 20.0
"""A sweep that would remove more than this share of a topic's keys is held."""

SMALL = 100
"""Below so many removals a share says nothing."""


def vanished(topic_keys: set[bytes], reader: Reader) -> set[bytes]:
    """The keys of ``topic_keys`` that no living row of the table has, all seen in one snapshot."""
    left = set(topic_keys)
    if left:
        left.difference_update(_table_keys(reader))
    return left


def deleted(records: Iterable[Record]) -> set[bytes]:
    """Keys of tombstones: the table has said what became of them, so a sweep need not guess."""
    return {record[0] for record in records if record[0] is not None and record[1] is None}


def too_many(removed: Iterable[bytes], topic_keys: set[bytes]) -> bool:
    """Whether a removal is so large that a mistake is likelier than the truth (guarantee 13)."""
    count = len(set(removed))
    return count > SMALL and count * 100 > REMOVED_PERCENT * len(topic_keys)


def _table_keys(reader: Reader) -> Iterator[bytes]:
    render_key = reader.plan.rows.render_key
    for rows in reader.living_rows():
        for row in rows:
            key = render_key(row)
            if key is not None:
                yield key
