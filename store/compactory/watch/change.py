"""A change of one entry, as watches and projections get it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count, repeat, zip_longest
from typing import Generic, Literal, TypeVar

import msgspec

from compactory.codec.packed_record import ORIGIN_SIZE, unpack_origin
from compactory.watch.change_log import AppliedChange
from compactory.watch.cursor import Cursor

__all__ = ["Change", "changes_of"]

T = TypeVar("T")


def changes_of(
    applied: list[AppliedChange], topic_id: str | None, before: Mapping[int, int], decoded: Callable[[str, bytes], T]
) -> list[Change[T]]:
    """Return changes that follow each other; ``before`` are the positions that a watch had before the first."""
    batch = _Batch(topic_id, before, [change[3][-ORIGIN_SIZE:] for change in applied], decoded)
    return list(map(Change, applied, repeat(batch), count()))


@dataclass(eq=False)
class _Batch(Generic[T]):
    """Facts that changes which follow each other share. Their positions are worked out when one is asked for.

    It does not hold the changes: a caller that keeps one of them keeps 16 bytes of each other one.
    """

    topic_id: str | None
    before: Mapping[int, int]
    metadata: list[bytes]
    decoded: Callable[[str, bytes], T]

    @cached_property
    def positions(self) -> list[Mapping[int, int]]:
        """For each change, partition → next offset of a watch that has seen it."""
        now, each = self.before, []
        for metadata, following in zip_longest(self.metadata, self.metadata[1:]):
            if following != metadata:  # else the record makes another change
                partition, offset, _ = unpack_origin(metadata)
                now = {**now, partition: max(offset + 1, now.get(partition, 0))}
            each.append(now)
        return each


class Change(msgspec.Struct, Generic[T], frozen=True, eq=False, gc=False):  # nothing it holds refers back to it
    """A change of one entry, by the record at ``partition`` and ``offset``, with that record's timestamp.

    A record that moves an entry from one lookup key to another makes two changes at one offset. Immutable.
    """

    _applied: AppliedChange
    _batch: _Batch[T]
    _number: int

    def __repr__(self) -> str:
        return f"<Change {self.kind} {self.key!r} at {self.partition}:{self.offset}>"

    @property
    def key(self) -> str:
        """The lookup key."""
        return self._applied[0].decode()

    @property
    def partition(self) -> int:
        """The partition of the record."""
        return unpack_origin(self._applied[3])[0]

    @property
    def offset(self) -> int:
        """The offset of the record."""
        return unpack_origin(self._applied[3])[1]

    @property
    def timestamp_ms(self) -> int:
        """The time of the record, in milliseconds since 1970 UTC."""
        return unpack_origin(self._applied[3])[2]

    @property
    def cursor(self) -> Cursor:
        """Where a watch goes on that has seen this change. A projection's change knows of its own partition only."""
        return Cursor(self._batch.topic_id, self._batch.positions[self._number])

    @property
    def kind(self) -> Literal["put", "delete"]:
        """Whether the key has a value now."""
        return "delete" if self._applied[2] is None else "put"

    @property
    def old(self) -> T | None:
        """The value before, decoded afresh; None where there was none. Raises DecodeError (``validate="read"``)."""
        old = self._applied[1]
        return None if old is None else self._batch.decoded(self.key, old)

    @property
    def new(self) -> T | None:
        """The value now, decoded afresh; None for a delete. Raises DecodeError (``validate="read"``)."""
        new = self._applied[2]
        return None if new is None else self._batch.decoded(self.key, new)

    @property
    def raw_old(self) -> bytes | None:
        """The bytes of the value before, exactly as they were in the topic; None where there was none."""
        old = self._applied[1]
        return None if old is None else old[:-ORIGIN_SIZE]

    @property
    def raw(self) -> bytes | None:
        """The bytes of the value now, exactly as they are in the topic; None for a delete."""
        new = self._applied[2]
        return None if new is None else new[:-ORIGIN_SIZE]
