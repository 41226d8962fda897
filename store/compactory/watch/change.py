"""A change of one entry, as watches and projections get it, and the cursor at which a watch continues after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count, repeat
from operator import itemgetter
from typing import Final, Generic, Literal, TypeVar

import msgspec

from compactory.codec.packed_record import ORIGIN_SIZE, unpack_origin
from compactory.token import partition_and_offset, unreadable
from compactory.watch.change_log import AppliedChange, record_of

__all__ = ["Change", "Cursor", "changes_of"]

T = TypeVar("T")

_KEY: Final = 0  # items of an AppliedChange
_OLD: Final = 1
_NEW: Final = 2
_VALUE = slice(None, -ORIGIN_SIZE)
_origin_bytes = itemgetter(slice(-ORIGIN_SIZE, None))


@dataclass(frozen=True, slots=True)
class Cursor:
    """The positions of a watch: it has seen the changes of all records before them, and of no later record.

    ``topic_id`` is None on a Kafka older than 2.8. The text of a cursor is ``TOPICID;0:42,1:17``. Immutable.
    """

    topic_id: str | None
    positions: Mapping[int, int]
    """Partition → next offset."""

    def __str__(self) -> str:
        positions = ",".join(f"{partition}:{position}" for partition, position in sorted(self.positions.items()))
        return f"{self.topic_id or ''};{positions}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Return the cursor of a text. Raises ConfigError for any other text."""
        topic_id, separator, positions_text = text.strip().partition(";")
        parts = positions_text.split(",") if positions_text else []
        positions = [item for part in parts if (item := partition_and_offset(part.split(":"))) is not None]
        if not separator or len(positions) < len(parts):
            raise unreadable(text, "a cursor: expected TOPICID;PARTITION:OFFSET,…, say 'abc;0:42,1:17'")
        return cls(topic_id or None, dict(positions))


def changes_of(
    applied: list[AppliedChange], topic_id: str | None, positions: Mapping[int, int], decode: Callable[[str, bytes], T]
) -> list[Change[T]]:
    """Return consecutive changes; ``positions`` are those of the watch before the first change."""
    batch = _ChangeBatch(topic_id, positions, list(map(_origin_bytes, map(record_of, applied))), decode)
    return list(map(Change, applied, repeat(batch), count()))


class _ChangeBatch(Generic[T]):
    """The common data of consecutive changes. Computes their cursors when the first one is asked for.

    Refers to the origins, not to the changes: a caller that keeps one change keeps 16 bytes of each other change.
    """

    __slots__ = ("_cursors", "_origins", "_positions", "decode", "topic_id")

    def __init__(
        self,
        topic_id: str | None,
        positions: Mapping[int, int],
        origins: list[bytes],
        decode: Callable[[str, bytes], T],
    ) -> None:
        self.topic_id = topic_id
        self.decode = decode
        self._positions = positions
        self._origins = origins
        self._cursors: list[Cursor] = []

    def cursor(self, number: int) -> Cursor:
        """Return the cursor of a watch that has seen the change of this number."""
        if not self._cursors:
            self._cursors = self._all_cursors()
        return self._cursors[number]

    def _all_cursors(self) -> list[Cursor]:
        cursors, positions = [], self._positions
        for number, origin in enumerate(self._origins, 1):
            if self._origins[number : number + 1] != [origin]:  # the last change that its record makes
                partition, offset, _ = unpack_origin(origin)
                positions = {**positions, partition: max(offset + 1, positions.get(partition, 0))}
            cursors.append(Cursor(self.topic_id, positions))
        return cursors


class Change(msgspec.Struct, Generic[T], frozen=True, eq=False, gc=False):  # its fields never refer back to it
    """A change of one entry, by the record at ``partition`` and ``offset``, with that record's timestamp.

    A record that moves an entry from one lookup key to another makes two changes at one offset. Immutable.
    """

    _applied: AppliedChange
    _batch: _ChangeBatch[T]
    _number: int

    def __repr__(self) -> str:
        return f"<Change {self.kind} {self.key!r} at {self.partition}:{self.offset}>"

    @property
    def key(self) -> str:
        """The lookup key."""
        return self._applied[_KEY].decode()

    @property
    def partition(self) -> int:
        """The partition of the record."""
        return unpack_origin(record_of(self._applied))[0]

    @property
    def offset(self) -> int:
        """The offset of the record."""
        return unpack_origin(record_of(self._applied))[1]

    @property
    def timestamp_ms(self) -> int:
        """The time of the record, in milliseconds since 1970 UTC."""
        return unpack_origin(record_of(self._applied))[2]

    @property
    def cursor(self) -> Cursor:
        """The cursor of a watch that has seen this change. In a projection it has only the record's own partition."""
        return self._batch.cursor(self._number)

    @property
    def kind(self) -> Literal["put", "delete"]:
        """``put`` if the key has a value after the change, otherwise ``delete``."""
        return "delete" if self._applied[_NEW] is None else "put"

    @property
    def old(self) -> T | None:
        """The value before the change, decoded afresh; None if none. Raises DecodeError (``validate="read"``)."""
        old = self._applied[_OLD]
        return None if old is None else self._batch.decode(self.key, old)

    @property
    def new(self) -> T | None:
        """The value after the change, decoded afresh; None for a delete. Raises DecodeError (``validate="read"``)."""
        new = self._applied[_NEW]
        return None if new is None else self._batch.decode(self.key, new)

    @property
    def raw_old(self) -> bytes | None:
        """The bytes of the value before the change, exactly as in the topic; None if there was none."""
        old = self._applied[_OLD]
        return None if old is None else old[_VALUE]

    @property
    def raw(self) -> bytes | None:
        """The bytes of the value after the change, exactly as in the topic; None for a delete."""
        new = self._applied[_NEW]
        return None if new is None else new[_VALUE]
