"""Changes of a directory, one by one, for one subscriber."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, NoReturn, Self, TypeVar

from compactory.codec.packed_record import METADATA_SIZE, unpack
from compactory.cursor import Cursor
from compactory.entries.change_log import AppliedChange
from compactory.entries.table import Table
from compactory.errors import CompactoryError, StoreClosed, StoreFailed, WatchExpired

__all__ = ["Change", "Watch"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Generic[T]):
    """A change of one entry, by the record at ``partition`` and ``offset``, with that record's timestamp.

    ``cursor`` is where a watch goes on that has seen this change; ``timestamp_ms`` is in milliseconds since 1970 UTC.
    A record that moves an entry from one lookup key to another makes two changes at one offset. Immutable.
    """

    key: str
    partition: int
    offset: int
    timestamp_ms: int
    cursor: Cursor
    _old: bytes | None = field(repr=False)
    _new: bytes | None = field(repr=False)
    _decoded: Callable[[str, bytes], T] = field(repr=False)

    @property
    def kind(self) -> Literal["put", "delete"]:
        """Whether the key has a value now."""
        return "delete" if self._new is None else "put"

    @property
    def old(self) -> T | None:
        """The value before, decoded afresh; None where there was none. Raises DecodeError (``validate="read"``)."""
        return None if self._old is None else self._decoded(self.key, self._old)

    @property
    def new(self) -> T | None:
        """The value now, decoded afresh; None for a delete. Raises DecodeError (``validate="read"``)."""
        return None if self._new is None else self._decoded(self.key, self._new)

    @property
    def raw(self) -> bytes | None:
        """The bytes of the value now, exactly as they are in the topic; None for a delete."""
        return None if self._new is None else self._new[:-METADATA_SIZE]


class Watch(Iterator[Change[T]], Generic[T]):
    """The changes of a directory from a cursor on: an iterator that waits for the next one, and a context manager.

    Made by `View.watch`. A change comes when lookups see it, and in the order in which records were applied. The store
    does not wait for a watch. One watch is for one thread at a time; any thread may call ``close``, which ends the
    iteration.

    Raises WatchExpired when it falls behind the changes that are kept (10,000, at most 16 MiB) and when the topic was
    read anew; StoreFailed and StoreClosed after the last change.
    """

    def __init__(
        self,
        table: Table,
        since: Cursor | None,
        decoded: Callable[[str, bytes], T],
        served: Callable[[], Table],
        refusal: Callable[[], CompactoryError],
    ) -> None:
        self._log, self._topic_id = table.changes, table.topic_id
        self._decoded, self._served, self._refusal = decoded, served, refusal
        self._taken: deque[Change[T]] = deque()
        self._closed = False
        with self._log.changed:
            now = self._log.positions
            self._positions = dict(now if since is None else since.positions)
            self._seen = {} if since is None else dict(since.positions)
            self._seen_ahead = {part: at for part, at in self._seen.items() if at > now.get(part, 0)}
            self._seen_until = self._log.end  # changes from this number on were seen only if the cursor was ahead
            if since is not None and (why := self._gap(since)):
                self._expire(why)
            self._next = self._log.end if since is None else self._first_unseen()
        self._cursor = Cursor(self._topic_id, dict(self._positions))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __next__(self) -> Change[T]:
        while not self._taken:
            with self._log.changed:
                self._log.changed.wait_for(lambda: self._closed or self._log.ended or self._log.end > self._next)
            if self._closed:
                raise StopIteration
            self._taken.extend(self.take())
        change = self._taken.popleft()
        self._cursor = change.cursor
        return change

    @property
    def cursor(self) -> Cursor:
        """Where another watch sees everything that this one has not returned yet."""
        return self._cursor

    def take(self) -> list[Change[T]]:
        """Return the changes that there are now, without waiting. Raises as the iteration does."""
        log = self._log
        with log.changed:
            if self._next < log.first:
                self._expire("the watch was too slow: changes that it has not seen are not kept any more")
            applied, number = log.kept_from(self._next), self._next
            self._next, positions = log.end, dict(log.positions)
            if not applied and log.ended:
                self._end()
        unseen = [change for at, change in enumerate(applied, number) if not self._was_seen(change, at)]
        changes = [self._change(unseen, at) for at in range(len(unseen))]
        self._positions = {**self._positions, **{p: max(at, self._positions.get(p, 0)) for p, at in positions.items()}}
        self._cursor = Cursor(self._topic_id, dict(self._positions))
        return changes

    def subscribe(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Have a quick callable called, by the reader's thread, when `take` has more; return what ends that."""
        self._log.subscribe(listener)
        return lambda: self._log.unsubscribe(listener)

    def close(self) -> None:
        """End the iteration. Idempotent."""
        with self._log.changed:
            self._closed = True
            self._log.changed.notify_all()

    def _first_unseen(self) -> int:
        first, kept = self._log.first, self._log.kept_from(self._log.first)
        return next((at for at, change in enumerate(kept, first) if not self._was_seen(change, at)), self._log.end)

    def _was_seen(self, change: AppliedChange, number: int) -> bool:
        partition, offset, _ = unpack(change.metadata)
        seen = self._seen if number < self._seen_until else self._seen_ahead
        return offset < seen.get(partition, 0)

    def _change(self, applied: Sequence[AppliedChange], at: int) -> Change[T]:
        name, old, new, metadata = applied[at]
        partition, offset, timestamp_ms = unpack(metadata)
        if at + 1 == len(applied) or applied[at + 1].metadata != metadata:  # else the record makes another change
            self._positions[partition] = max(offset + 1, self._positions.get(partition, 0))
        return Change(
            key=name.decode(),
            partition=partition,
            offset=offset,
            timestamp_ms=timestamp_ms,
            cursor=Cursor(self._topic_id, dict(self._positions)),
            _old=old,
            _new=new,
            _decoded=self._decoded,
        )

    def _gap(self, since: Cursor) -> str:
        """Say why changes behind a cursor are not all there; empty where they are."""
        if since.topic_id and self._topic_id and since.topic_id != self._topic_id:
            return "the cursor is of another topic of this name: one was deleted since"
        lacking = [part for part, floor in self._log.floor.items() if since.positions.get(part, 0) < floor]
        return f"changes since the cursor are not kept any more (partition {lacking[0]})" if lacking else ""

    def _end(self) -> NoReturn:
        refusal = self._refusal()
        if isinstance(refusal, StoreFailed | StoreClosed):
            raise refusal
        self._expire("the topic was read anew")

    def _expire(self, why: str) -> NoReturn:
        table = self._served()  # another one where the topic was read anew
        now = Cursor(table.topic_id, dict(table.changes.positions))
        raise WatchExpired(f"{why}; read the directory, then watch on from the cursor of this error", now)
