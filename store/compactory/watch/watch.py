"""Changes of a directory, one by one, for one subscriber."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from copy import copy
from typing import Generic, NoReturn, Self, TypeVar

from compactory.codec.packed_record import unpack_origin
from compactory.errors import CompactoryError, StoreClosed, StoreFailed, WatchExpired
from compactory.watch.change import Change, Cursor, changes_of
from compactory.watch.change_log import AppliedChange, ChangeLog, record_of, size_of

__all__ = ["Watch"]

T = TypeVar("T")


class Watch(Iterator[Change[T]], Generic[T]):
    """The changes of a directory after a cursor: an iterator that waits for the next one, and a context manager.

    Made by `View.watch`. A change comes when lookups see it, and in the order in which records were applied. The store
    does not wait for a watch. One watch is for one thread at a time; any thread may call ``close``, which ends the
    iteration.

    Raises WatchExpired when it is so slow that its next changes are not kept any more (10,000 are, at most 16 MiB), and
    when the topic was read anew; StoreFailed and StoreClosed after the last change.
    """

    def __init__(
        self,
        log: ChangeLog,
        topic_id: str | None,
        since: Cursor | None,
        decode: Callable[[str, bytes], T],
        present_cursor: Callable[[], Cursor],
        refusal: Callable[[], CompactoryError],
    ) -> None:
        self._log, self._topic_id = log, topic_id
        self._decode, self._present_cursor, self._refusal = decode, present_cursor, refusal
        self._pending: deque[Change[T]] = deque()
        self._returned: Change[T] | None = None  # the newest change that the iteration returned
        self._is_closed = False
        with log.condition:
            self._opened_number = log.next_number
            self._next_number = log.next_number
            self._positions = log.positions
            # Positions below which the cursor has seen earlier changes, and later ones if it is newer than the log.
            self._cursor_positions: Mapping[int, int] = {}
            self._later_positions: Mapping[int, int] = {}
            if since is not None:
                self._continue_from(since)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Generator[Change[T], None, None]:  # twice as fast as calls of __next__
        while self._pending or self._wait():
            self._returned = change = self._pending.popleft()
            yield change

    def __next__(self) -> Change[T]:
        for change in self:
            return change
        raise StopIteration

    @property
    def cursor(self) -> Cursor:
        """The cursor after the last change that this watch returned. Another watch continues there."""
        return self._returned.cursor if self._returned else Cursor(self._topic_id, self._positions)

    def take(self, most_bytes: int | None = None, until: Watch[T] | None = None) -> list[Change[T]]:
        """Return the changes that are there, without waiting. Raises as the iteration does.

        With ``most_bytes`` it stops at the change that brings the values to that size, except within one record. With
        another watch as ``until`` it returns only the changes that this watch has returned, if both are of one table.
        """
        log = self._log
        with log.condition:
            if self._next_number < log.first_number:
                self._expire("the watch was too slow: changes that it has not seen are not kept any more")
            if self._next_number == log.next_number and log.is_ended:
                self._raise_end()
            first_number = self._next_number
            applied = log.changes_between(first_number, log.next_number if until is None else until._stop_in(log))  # noqa: SLF001
            log_positions, log_end = log.positions, log.next_number
        if most_bytes is not None:
            applied = _first_changes(applied, most_bytes)
        self._next_number += len(applied)
        applied = self._without_seen(applied, first_number)
        changes = changes_of(applied, self._topic_id, self._positions, self._decode)
        if self._next_number == log_end:
            self._advance(log_positions)
        elif changes:
            self._positions = changes[-1].cursor.positions
        self._returned = None
        return changes

    def is_level_with(self, watch: Watch[T]) -> bool:
        """Return True if both watches return the same changes from here on."""
        same_next = self._log is watch._log and self._next_number == watch._next_number
        return same_next and self._opened_number <= self._next_number and not self._later_positions

    def fork(self) -> Watch[T]:
        """Return another watch that continues at the same change."""
        watch = copy(self)
        watch._pending = self._pending.copy()  # noqa: SLF001 (of the same class)
        return watch

    def subscribe(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call a quick callable, in the reader thread, when `take` has changes. Return a function that stops that."""
        self._log.subscribe(listener)
        return lambda: self._log.unsubscribe(listener)

    def close(self) -> None:
        """End the iteration. Idempotent."""
        with self._log.condition:
            self._is_closed = True
            self._log.condition.notify_all()

    def _wait(self) -> bool:
        """Wait for changes, and return True if some are pending; False if the watch is closed."""
        log = self._log
        while not self._pending:
            with log.condition:
                while not (self._is_closed or log.is_ended or log.next_number > self._next_number):
                    log.condition.wait()
            if self._is_closed:
                return False
            self._pending.extend(self.take())
        return True

    def _continue_from(self, since: Cursor) -> None:
        """Begin with the first change that the cursor has not seen. Raises WatchExpired if changes are missing."""
        log = self._log
        self._positions = self._cursor_positions = dict(since.positions)
        self._later_positions = _later(since.positions, log.positions)
        if problem := self._gap(since):
            self._expire(problem)
        numbered = enumerate(log.changes_between(log.first_number, log.next_number), log.first_number)
        unseen = (number for number, change in numbered if not self._was_seen(change, number))
        self._next_number = next(unseen, log.next_number)

    def _advance(self, log_positions: Mapping[int, int]) -> None:
        """Take over the positions of the log, whose changes were all returned, except where the cursor is later."""
        self._positions = {**self._positions, **log_positions, **_later(self._later_positions, log_positions)}
        self._later_positions = _later(self._later_positions, log_positions)

    def _stop_in(self, log: ChangeLog) -> int:
        """Return the number of the next change of this watch; the end of ``log`` if that is another log."""
        return self._next_number if log is self._log else log.next_number

    def _without_seen(self, applied: list[AppliedChange], first_number: int) -> list[AppliedChange]:
        """Leave out changes that the cursor has seen: from before the watch was opened, or if the cursor is later."""
        if not self._later_positions and first_number >= self._opened_number:
            return applied
        numbered = enumerate(applied, first_number)
        return [change for number, change in numbered if not self._was_seen(change, number)]

    def _was_seen(self, change: AppliedChange, number: int) -> bool:
        partition, offset, _ = unpack_origin(record_of(change))
        positions = self._cursor_positions if number < self._opened_number else self._later_positions
        return offset < positions.get(partition, 0) and number not in self._log.retried

    def _gap(self, since: Cursor) -> str:
        """Return why changes after a cursor are missing; empty if none is."""
        if since.topic_id and self._topic_id and since.topic_id != self._topic_id:
            return "the cursor is of another topic of this name: one was deleted since"
        missing = _later(self._log.complete_from, since.positions)
        return f"changes since the cursor are not kept any more (partition {next(iter(missing))})" if missing else ""

    def _raise_end(self) -> NoReturn:
        refusal = self._refusal()
        if isinstance(refusal, StoreFailed | StoreClosed):
            raise refusal
        self._expire("the topic was read anew")

    def _expire(self, problem: str) -> NoReturn:
        cursor = self._present_cursor()
        raise WatchExpired(f"{problem}; read the directory, then watch on from the cursor {cursor}", cursor)


def _later(positions: Mapping[int, int], reference: Mapping[int, int]) -> dict[int, int]:
    return {part: position for part, position in positions.items() if position > reference.get(part, 0)}


def _first_changes(changes: list[AppliedChange], most_bytes: int) -> list[AppliedChange]:
    """Return the changes to the one with which their values reach a size. Those of one record stay together."""
    size = 0
    for count, change in enumerate(changes, 1):
        size += size_of(change)
        if size >= most_bytes and (count == len(changes) or record_of(changes[count]) != record_of(change)):
            return changes[:count]
    return changes
