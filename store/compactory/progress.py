"""How far a store is, and everybody who waits for it to get further.

The reader thread moves positions after the change is visible; waiters are woken by progress, by the reader's death and
by close. One condition guards everything; reads of single attributes need no lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from threading import Condition
from typing import Any

from compactory.errors import CompactoryError, NotReady, StartTimeout, StoreClosed, StoreFailed, WaitTimeout
from compactory.records import Partition, StoreState

__all__ = ["Progress"]


class Progress:
    """State, positions and targets of one store. Thread-safe."""

    def __init__(self) -> None:
        self.state = StoreState.NEW
        self.cause: BaseException | None = None
        self.ends: dict[Partition, int] = {}  # high watermarks as last asked, for lag()
        self._positions: dict[Partition, int] = {}  # next offset to read
        self._targets: dict[Partition, int] = {}  # high watermark captured when the partition was first seen
        self._new: list[Partition] = []  # seen, and not yet taken by the reader
        self._caught_up: dict[Partition, float] = {}  # when everything that was in it then is known to be applied
        self._asked_at = 0.0  # when ``ends`` were asked for
        self._moved_at = time.monotonic()
        self._changed = Condition()  # guards all of the above
        self._listeners: tuple[Callable[[], None], ...] = ()

    def positions(self) -> dict[Partition, int]:
        """Return the next offset to read of every partition."""
        with self._changed:
            return dict(self._positions)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called after each change of positions or state, by the thread that made it.

        It must be quick and must not raise: the reader waits for it.
        """
        with self._changed:
            self._listeners += (listener,)

    def unsubscribe(self, listener: Callable[[], None]) -> None:
        """Stop calling ``listener``; a call under way may still end later."""
        with self._changed:
            self._listeners = tuple(other for other in self._listeners if other != listener)

    def move(self, state: StoreState, cause: BaseException | None = None) -> bool:
        """Change the state and wake everybody; False where the move is not legal (closed is for good)."""
        with self._changed:
            if not self.state.may_become(state):
                return False
            self.state = state
            self.cause = cause or self.cause
            self._moved_at = time.monotonic()
            self._changed.notify_all()
        self._tell()
        return True

    def orphan(self, cause: BaseException) -> None:
        """Fail without taking the lock: in a forked child its holder may not exist any more."""
        self._changed = Condition()
        self.state = StoreState.FAILED
        self.cause = cause

    def add(self, starts: Mapping[Partition, int], targets: Mapping[Partition, int]) -> None:
        """Take up partitions not known before, at their log start, to be read to ``targets``."""
        with self._changed:
            for partition, start in starts.items():
                if partition not in self._positions and partition in targets:
                    self._positions[partition] = start
                    self._targets[partition] = targets[partition]
                    self._new.append(partition)
            self._changed.notify_all()

    def take_new(self) -> dict[Partition, int]:
        """Return the partitions (and their positions) that the reader has not taken yet. For the reader."""
        if not self._new:
            return {}
        with self._changed:
            taken, self._new = self._new, []
            return {partition: self._positions[partition] for partition in taken}

    def advance(self, positions: Iterable[tuple[Partition, int]]) -> None:
        """Move positions on, never back. For the reader, after what lies before them is visible."""
        with self._changed:
            for partition, position in positions:
                if position > self._positions.get(partition, -1):
                    self._positions[partition] = position
                    self._moved_at = time.monotonic()
            self._changed.notify_all()
        self._tell()

    def note_ends(self, ends: dict[Partition, int], asked_at: float) -> None:
        """Keep the high watermarks that the broker gave when asked at ``asked_at`` (of the monotonic clock)."""
        with self._changed:
            self._note_caught_up()
            self.ends = ends
            self._asked_at = asked_at

    def caught_up(self) -> dict[Partition, float]:
        """Return when (monotonic clock) each partition was last known to be applied as far as it went at that time."""
        with self._changed:
            self._note_caught_up()
            return dict(self._caught_up)

    def is_complete(self) -> bool:
        """Say whether every known partition is applied up to its target."""
        with self._changed:
            return all(self._positions[partition] >= target for partition, target in self._targets.items())

    def blocking(self) -> list[dict[str, Any]]:
        """Return the partitions short of their target, as StartTimeout and ``/readyz`` list them."""
        with self._changed:
            return [
                {"topic": partition.topic, "partition": partition.partition, "position": position, "target": target}
                for partition, target in self._targets.items()
                if (position := self._positions[partition]) < target
            ]

    def wait_loaded(self, stall_timeout: float, start_timeout: float | None, began: float) -> None:
        """Wait until the store has left LOADING; ``began`` is when it started, by the monotonic clock.

        Raises StartTimeout, StoreFailed or StoreClosed.
        """
        deadline = None if start_timeout is None else began + start_timeout
        with self._changed:
            while self.state is StoreState.LOADING:
                now = time.monotonic()
                stalled = self._moved_at + stall_timeout - now
                left = stalled if deadline is None else min(stalled, deadline - now)
                if left <= 0:
                    what = (
                        f"no progress for {stall_timeout:g} s" if stalled <= 0 else f"not ready in {start_timeout:g} s"
                    )
                    raise StartTimeout(what)
                self._changed.wait(left)
            self.raise_end()

    def wait_until(self, targets: Mapping[Partition, int], timeout: float, what: str) -> None:
        """Wait until every position is at or beyond its target.

        Raises WaitTimeout with the gap, StoreFailed when the reader has died, StoreClosed.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while gap := self._gap(targets):
                self.raise_end()
                left = deadline - time.monotonic()
                if left <= 0:
                    places = ", ".join(f"{part.topic}:{part.partition} by {short}" for part, short in gap.items())
                    raise WaitTimeout(f"{what} was not reached in {timeout:g} s: behind in {places}", gap)
                self._changed.wait(left)

    def raise_end(self) -> None:
        """Raise StoreFailed or StoreClosed where that is how the store ended."""
        if self.state in (StoreState.FAILED, StoreState.CLOSED):
            raise self.refusal()

    def refusal(self) -> CompactoryError:
        """Return the error that says why the store does not answer now."""
        if self.state is StoreState.CLOSED:
            return StoreClosed("the store is closed; make a new one")
        if self.state is StoreState.FAILED:
            return StoreFailed(f"the store failed: {self.cause}", self.cause)
        if self.state is StoreState.NEW:
            return NotReady("the store was not started: call start(), or use it in a with block")
        return NotReady("the store is loading: it answers once it has read to the high watermark")

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    def _note_caught_up(self) -> None:
        for partition, end in self.ends.items():
            if self._positions.get(partition, -1) >= end:
                self._caught_up[partition] = self._asked_at

    def _gap(self, targets: Mapping[Partition, int]) -> dict[Partition, int]:
        return {
            partition: target - max(0, self._positions.get(partition, 0))
            for partition, target in targets.items()
            if self._positions.get(partition, -1) < target
        }
