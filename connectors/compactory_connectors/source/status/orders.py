"""Operators' orders to a running source: given by any thread, carried out by the source's own, in `runtime.session`.

Orders are kept, not queued: asking twice is asking once. Tables go by their name in the status (``schema.table``).
A pause is kept in the offsets topic as well, so that it survives the process. The key of that record is
``["<connector>",{"protocol":"1","state":"target"}]``, beside the tables' offsets; no record, or a tombstone, means
running.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from compactory.errors import OrderRefused

from ..offsets.target_state import Target, TargetState

__all__ = ["MOST_KEYS", "Control", "Halt", "Stop"]

MOST_KEYS = 100_000
"""Keys of one table that may wait to be sent again."""

_SLICE = 0.1  # seconds; how long a wait may take to notice that the process should stop


class Stop(Protocol):
    """Ends a piece of work early: a threading.Event, or a :class:`Halt`."""

    def is_set(self) -> bool:
        """Whether to end as soon as it can."""
        ...


class Control:
    """Orders to one source. Thread-safe; giving an order never waits."""

    def __init__(self) -> None:
        self.changed = threading.Event()
        """Set by every order. The source's thread clears it before it looks at them, and acts on those it finds."""
        self._lock = threading.Lock()  # guards all of the following
        self._stored: TargetState | None = None  # in the offsets topic; None before it was read
        self._ordered: TargetState | None = None  # waits to be stored there
        self._all = False
        self._tables: set[str] = set()
        self._approved: dict[str, str] = {}
        self._keys: dict[str, dict[bytes, None]] = {}

    @property
    def target_state(self) -> TargetState:
        """The target, and since when it is wanted."""
        with self._lock:
            return self._target_state

    @property
    def paused(self) -> bool:
        """Whether nothing is to be polled or published."""
        return self.target_state.paused

    @property
    def stored(self) -> bool:
        """Whether the target is known to outlive this process."""
        with self._lock:
            return self._stored is not None and self._ordered is None

    @property
    def interrupts(self) -> bool:
        """True if the session that runs must end: for a pause, a restart, or a target that is to be stored."""
        with self._lock:
            return self._all or self._ordered is not None or self._target_state.paused

    def pause(self) -> None:
        """Stop publishing, also after a restart of the process, until :meth:`resume`."""
        self._order(Target.PAUSED)

    def resume(self) -> None:
        """Publish again."""
        self._order(Target.RUNNING)

    def keep(self, stored: TargetState) -> None:
        """Record the target in the offsets topic; an order of this process that is not stored yet still counts."""
        with self._lock:
            self._stored = stored
            if self._ordered == stored:
                self._ordered = None

    def forget(self) -> None:
        """Drop orders that were not carried out: another process publishes, and takes orders."""
        with self._lock:
            self._ordered, self._all = None, False
            for orders in (self._tables, self._approved, self._keys):
                orders.clear()

    def wait(self, stop: Stop, seconds: float) -> None:
        """Wait until an order comes or came since the last wait, ``stop`` is set, or so many seconds have passed."""
        end = time.monotonic() + seconds
        while not stop.is_set() and (left := end - time.monotonic()) > 0:
            if self.changed.wait(min(left, _SLICE)):
                self.changed.clear()
                break

    def restart(self, table: str | None = None) -> None:
        """Forget failures and look at a table afresh at once; None: at everything, in a new session."""
        with self._lock:
            if table is None:
                self._all = True
            else:
                self._tables.add(table)
        self.changed.set()

    def approve(self, table: str, removal: str | None) -> None:
        """Allow the held removal that the status shows by this id, and no other; None takes an approval back."""
        with self._lock:
            if removal is None:
                self._approved.pop(table, None)
            else:
                self._approved[table] = removal
        self.changed.set()

    def resend(self, table: str, keys: Sequence[bytes]) -> None:
        """Have the rows of these record keys sent again as they are, and tombstones for those that have no row.

        Raises OrderRefused, and takes none of them, where more than MOST_KEYS would wait.
        """
        with self._lock:
            waiting = self._keys.get(table, {}) | dict.fromkeys(keys)
            if len(waiting) > MOST_KEYS:
                raise OrderRefused(f"more than {MOST_KEYS:,} keys of {table} would wait to be sent again; try later")
            self._keys[table] = waiting
        self.changed.set()

    def wants(self, table: str) -> bool:
        """Whether something waits that a poll of this table may answer."""
        with self._lock:
            return table in self._tables or table in self._approved

    def take_restart(self) -> bool:
        """Whether a new session was asked for; asked once, answered once."""
        with self._lock:
            wanted, self._all = self._all, False
            return wanted

    def take_restarts(self) -> set[str]:
        """The tables that are to be looked at afresh; forgotten here."""
        with self._lock:
            wanted, self._tables = self._tables, set()
            return wanted

    def take_approval(self, table: str) -> str | None:
        """The id of the removal that was approved; forgotten here."""
        with self._lock:
            return self._approved.pop(table, None)

    def take_resend(self, table: str) -> list[bytes]:
        """The keys to send again, in the order they came; forgotten here."""
        with self._lock:
            return list(self._keys.pop(table, ()))

    def put_back(self, table: str, keys: Sequence[bytes]) -> None:
        """These can't be sent again for now, and wait on; nobody is woken for them."""
        with self._lock:
            self._keys[table] = dict.fromkeys(keys) | self._keys.get(table, {})

    @property
    def _target_state(self) -> TargetState:
        return self._ordered or self._stored or TargetState()

    def _order(self, target: Target) -> None:
        with self._lock:
            if self._stored is None or target is not self._target_state.target:
                self._ordered = TargetState(target=target, since=time.time())
        self.changed.set()


class Halt:
    """A stop for one of several reasons, such as the end of the process, a lost lease or an order."""

    def __init__(self, *reasons: Callable[[], bool]) -> None:
        self._reasons = reasons

    def is_set(self) -> bool:
        """Whether one of them holds."""
        return any(reason() for reason in self._reasons)
