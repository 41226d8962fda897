"""Operators' orders to a running source: given by any thread, carried out by the source's own thread.

Orders are kept, not queued: the same order twice is one order. Tables go by their name in the status
(``schema.table``). The state that an operator wants of a connector is stored in the offsets topic as well
(``offsets.stored_offsets``), so that a pause survives the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from compactory.errors import OrderRefused

from ..offsets.stored_offsets import Target, TargetState

__all__ = ["MOST_KEYS", "Orders", "Stop", "StopWhen"]

MOST_KEYS = 100_000
"""Keys of one table that may wait to be sent again."""

_STOP_INTERVAL = 0.1  # seconds after which a wait notices that the process should stop


class Stop(Protocol):
    """Ends a piece of work early: a threading.Event, or a :class:`StopWhen`."""

    def is_set(self) -> bool:
        """Return True if the work should end as soon as it can."""
        ...


class StopWhen:
    """A stop for one of several reasons, such as the end of the process, a lost lease or an order."""

    def __init__(self, *reasons: Callable[[], bool]) -> None:
        self._reasons = reasons

    def is_set(self) -> bool:
        return any(reason() for reason in self._reasons)


class Orders:
    """Orders to one source that were not carried out yet. Thread-safe; giving an order never waits."""

    def __init__(self) -> None:
        self.changed = threading.Event()
        """Set by every order. The source's thread clears it before it carries orders out."""
        self._lock = threading.Lock()  # guards all of the following
        self._stored_target: TargetState | None = None  # in the offsets topic; None before it was read
        self._ordered_target: TargetState | None = None  # still to be stored there
        self._is_restart_due = False
        self._restarts: set[str] = set()
        self._approvals: dict[str, str] = {}
        self._resends: dict[str, dict[bytes, None]] = {}

    @property
    def target_state(self) -> TargetState:
        """The state that an operator wants, and since when."""
        with self._lock:
            return self._target_state

    @property
    def is_paused(self) -> bool:
        return self.target_state.is_paused

    @property
    def is_target_stored(self) -> bool:
        """True if the target is known to outlive this process."""
        with self._lock:
            return self._stored_target is not None and self._ordered_target is None

    @property
    def ends_session(self) -> bool:
        """True if the running session must end: for a pause, a restart, or a target that is to be stored."""
        with self._lock:
            return self._is_restart_due or self._ordered_target is not None or self._target_state.is_paused

    def set_target(self, target: Target) -> None:
        """Pause the connector, also after a restart of the process, or let it run again."""
        with self._lock:
            if self._stored_target is None or target is not self._target_state.target:
                self._ordered_target = TargetState(target=target, since=time.time())
        self.changed.set()

    def target_stored(self, stored: TargetState) -> None:
        """Note which target the offsets topic has. An order that is not stored there yet still counts."""
        with self._lock:
            self._stored_target = stored
            if self._ordered_target == stored:
                self._ordered_target = None

    def restart(self, table: str | None = None) -> None:
        """Retry a table at once, whatever failed before; with None everything, in a new session."""
        with self._lock:
            if table is None:
                self._is_restart_due = True
            else:
                self._restarts.add(table)
        self.changed.set()

    def approve(self, table: str, removal: str) -> None:
        """Allow the held removal that the status shows by this id, and no other."""
        with self._lock:
            self._approvals[table] = removal
        self.changed.set()

    def resend(self, table: str, keys: Sequence[bytes]) -> None:
        """Send the rows of these record keys again as they are, and tombstones for keys that have no row.

        Raises OrderRefused, and takes none of them, where more than MOST_KEYS would wait.
        """
        with self._lock:
            waiting = self._resends.get(table, {}) | dict.fromkeys(keys)
            if len(waiting) > MOST_KEYS:
                raise OrderRefused(f"more than {MOST_KEYS:,} keys of {table} would wait to be sent again; try later")
            self._resends[table] = waiting
        self.changed.set()

    def needs_poll(self, table: str) -> bool:
        """Return True if a poll of this table would carry an order out."""
        with self._lock:
            return table in self._restarts or table in self._approvals

    def take_restart(self) -> bool:
        """Return True if a new session was ordered, and forget that order."""
        with self._lock:
            is_due, self._is_restart_due = self._is_restart_due, False
            return is_due

    def take_restarts(self) -> set[str]:
        """Return the tables to retry at once, and forget those orders."""
        with self._lock:
            tables, self._restarts = self._restarts, set()
            return tables

    def take_approval(self, table: str) -> str | None:
        """Return the id of the removal that was approved, and forget that order."""
        with self._lock:
            return self._approvals.pop(table, None)

    def take_resend(self, table: str) -> list[bytes]:
        """Return the keys to send again, in the order they came, and forget that order."""
        with self._lock:
            return list(self._resends.pop(table, ()))

    def put_back(self, table: str, keys: Sequence[bytes]) -> None:
        """Put keys back that can't be sent again now; wakes nobody."""
        with self._lock:
            self._resends[table] = dict.fromkeys(keys) | self._resends.get(table, {})

    def drop(self) -> None:
        """Drop orders that were not carried out: another process publishes, and takes orders."""
        with self._lock:
            self._ordered_target, self._is_restart_due = None, False
            self._restarts.clear()
            self._approvals.clear()
            self._resends.clear()

    def wait(self, stop: Stop, seconds: float) -> None:
        """Wait until an order comes or came since the last wait, ``stop`` is set, or so many seconds have passed."""
        deadline = time.monotonic() + seconds
        while not stop.is_set() and (remaining := deadline - time.monotonic()) > 0:
            if self.changed.wait(min(remaining, _STOP_INTERVAL)):
                self.changed.clear()
                break

    @property
    def _target_state(self) -> TargetState:
        return self._ordered_target or self._stored_target or TargetState()
