"""The state of a store, with the listeners and the waiting threads that a change of it wakes."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition

from compactory.clock import clock
from compactory.errors import CompactoryError, NotReady, StoreClosed, StoreFailed
from compactory.records import StoreState
from compactory.threads import Contained

__all__ = ["StoreStatus"]


class StoreStatus:
    """The state of a store. Thread-safe; reads of single attributes need no lock."""

    def __init__(self) -> None:
        self.state = StoreState.NEW
        self.cause: BaseException | None = None  # the error that ended a FAILED store
        self._advanced_at = clock()  # when the state or the reading last advanced
        self._changed = Condition()  # guards all attributes, those of subclasses included
        self._listeners: tuple[Contained, ...] = ()
        self._inherited: tuple[Condition, BaseException | None] | None = None  # in a forked child: of its parent

    @property
    def serves(self) -> bool:
        """Return True if lookups are answered, from data that is kept up to date as far as Kafka allows."""
        return self.state in (StoreState.READY, StoreState.STALE)

    def move(self, state: StoreState, cause: BaseException | None = None) -> bool:
        """Change the state and wake all waiters. Return False if the move is not legal (CLOSED is for good)."""
        with self._changed:
            has_moved = self._move(state, cause)
        if has_moved:
            self._notify()
        return has_moved

    def orphan(self, cause: BaseException) -> None:
        """Fail without taking the lock: in a forked child its holder may not exist any more.

        The former lock and error are kept: a traceback may hold clients of the parent, which must not be destroyed
        here.
        """
        self._inherited = (self._changed, self.cause)
        self._changed = Condition()
        self.state = StoreState.FAILED
        self.cause = cause

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each change of positions or state, in the thread that made the change.

        It must be quick: the reader waits for it. Its first error is logged.
        """
        with self._changed:
            self._listeners += (Contained("a listener of subscribe", listener),)

    def unsubscribe(self, listener: Callable[[], None]) -> None:
        """Stop calling ``listener``; a call under way may still end later."""
        with self._changed:
            self._listeners = tuple(contained for contained in self._listeners if contained.function != listener)

    def raise_end(self) -> None:
        """Raise StoreFailed or StoreClosed if the store has ended."""
        if self.state in (StoreState.FAILED, StoreState.CLOSED):
            raise self.refusal()

    def refusal(self) -> CompactoryError:
        """Return the error that says why the store does not answer now."""
        if self.state is StoreState.CLOSED:
            return StoreClosed("the store is closed, or nothing referred to it any more: make a new one and keep it")
        if self.state is StoreState.FAILED:
            return StoreFailed(f"the store failed: {str(self.cause) or type(self.cause).__name__}", self.cause)
        if self.state is StoreState.NEW:
            return NotReady("the store was not started: call start(), or use it in a with block")
        return NotReady("the store is loading: it answers once it has read to the high watermark")

    def _move(self, state: StoreState, cause: BaseException | None = None) -> bool:
        if not self.state.may_become(state):
            return False
        self.state = state
        self.cause = cause or self.cause
        self._advanced_at = clock()
        self._changed.notify_all()
        return True

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()
