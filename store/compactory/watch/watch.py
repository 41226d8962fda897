"""Changes of a directory, one by one, for one subscriber."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Generic, NoReturn, Self, TypeVar

from compactory.codec.packed_record import unpack_origin
from compactory.errors import CompactoryError, StoreClosed, StoreFailed, WatchExpired
from compactory.watch.change import Change, changes_of
from compactory.watch.change_log import AppliedChange, ChangeLog, size_of
from compactory.watch.cursor import Cursor

__all__ = ["Watch"]

T = TypeVar("T")


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
        log: ChangeLog,
        topic_id: str | None,
        since: Cursor | None,
        decoded: Callable[[str, bytes], T],
        present: Callable[[], Cursor],
        refusal: Callable[[], CompactoryError],
    ) -> None:
        self._log, self._topic_id = log, topic_id
        self._decoded, self._present, self._refusal = decoded, present, refusal
        self._taken: deque[Change[T]] = deque()
        self._closed = False
        with self._log.changed:
            now = self._log.positions
            self._positions: Mapping[int, int] = dict(now if since is None else since.positions)
            self._seen = {} if since is None else dict(since.positions)
            self._seen_ahead = {part: at for part, at in self._seen.items() if at > now.get(part, 0)}
            self._seen_until = self._log.end  # changes from this number on were seen only if the cursor was ahead
            if since is not None and (why := self._gap(since)):
                self._expire(why)
            self._next = self._log.end if since is None else self._first_unseen()
        self._returned: Change[T] | None = None  # what the iteration returned last

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
        self._returned = change = self._taken.popleft()
        return change

    @property
    def cursor(self) -> Cursor:
        """Where another watch sees everything that this one has not returned yet."""
        return self._returned.cursor if self._returned else Cursor(self._topic_id, self._positions)

    def take(self, most_bytes: int | None = None, until: Watch[T] | None = None) -> list[Change[T]]:
        """Return the changes that there are now, without waiting. Raises as the iteration does.

        With ``most_bytes`` only the first ones, up to the one whose values reach that size. With another watch as
        ``until`` none that it has not returned yet, if both are of one table.
        """
        log = self._log
        with log.changed:
            if self._next < log.first:
                self._expire("the watch was too slow: changes that it has not seen are not kept any more")
            if self._next == log.end and log.ended:
                self._end()
            applied = log.kept_from(self._next, log.end if until is None else until._end_in(log))  # noqa: SLF001
            number, positions, newest = self._next, dict(log.positions), log.end
        applied = applied if most_bytes is None else _first(applied, most_bytes)
        self._next = number + len(applied)
        if self._seen_ahead or number < self._seen_until:
            applied = [change for at, change in enumerate(applied, number) if not self._was_seen(change, at)]
        changes = changes_of(applied, self._topic_id, self._positions, self._decoded)
        if self._next == newest:
            seen = self._positions
            self._positions = {**seen, **{part: max(at, seen.get(part, 0)) for part, at in positions.items()}}
            self._seen_ahead = {p: at for p, at in self._seen_ahead.items() if at > positions.get(p, 0)}
        elif changes:
            self._positions = changes[-1].cursor.positions
        self._returned = None
        return changes

    def in_step_with(self, other: Watch[T]) -> bool:
        """Whether both return the same changes from now on."""
        return self._log is other._log and self._seen_until <= self._next == other._next and not self._seen_ahead

    def fork(self) -> Watch[T]:
        """Return another watch that goes on from here."""
        other = copy(self)
        other._taken = self._taken.copy()  # noqa: SLF001 (this class's own)
        return other

    def subscribe(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Have a quick callable called, by the reader's thread, when `take` has more; return what ends that."""
        self._log.subscribe(listener)
        return lambda: self._log.unsubscribe(listener)

    def close(self) -> None:
        """End the iteration. Idempotent."""
        with self._log.changed:
            self._closed = True
            self._log.changed.notify_all()

    def _end_in(self, log: ChangeLog) -> int:
        return self._next if log is self._log else log.end

    def _first_unseen(self) -> int:
        first, end = self._log.first, self._log.end
        kept = enumerate(self._log.kept_from(first, end), first)
        return next((at for at, change in kept if not self._was_seen(change, at)), end)

    def _was_seen(self, change: AppliedChange, number: int) -> bool:
        partition, offset, _ = unpack_origin(change[3])
        seen = self._seen if number < self._seen_until else self._seen_ahead
        return offset < seen.get(partition, 0) and number not in self._log.late

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
        now = self._present()
        raise WatchExpired(f"{why}; read the directory, then watch on from the cursor {now}", now)


def _first(changes: list[AppliedChange], most_bytes: int) -> list[AppliedChange]:
    """Return the changes up to the one whose values reach a size; those of one record stay together."""
    size = 0
    for number, change in enumerate(changes, 1):
        size += size_of(change)
        if size >= most_bytes and (number == len(changes) or changes[number][3] != change[3]):
            return changes[:number]
    return changes
