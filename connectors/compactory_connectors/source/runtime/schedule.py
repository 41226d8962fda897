"""When a table is polled: at each interval while it changes, less often while it does not or can't be. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from compactory_connectors.backoff import Backoff

__all__ = ["BUSY", "Schedule"]

BUSY = 8
"""Notifications in a row that came while their table was polled, after which its writers are asked to stay silent."""

_SHORTEST = 0.001  # seconds between two looks at anything
_IDLE = 1.0  # seconds between two looks at a table that does not change
_NOTIFYING = 5.0  # at one whose writers notify: a look only finds changes without a notification
_SETTLING = 0.2  # until a look at a table whose last changes a crash could take back; the server's wal_writer_delay
_BLOCKED = (0.002, 0.5)  # between two attempts to sleep while a silent writer's transaction is open


@dataclass(slots=True, kw_only=True)
class Schedule:
    """The schedule of one table. ``interval``: seconds of ``poll.interval.ms``. Times are those of the monotonic clock.

    Looks fall on a grid that tables have in common, so that one statement can ask about many: steps double from the
    interval on until a look every second, or every five seconds where writers notify; an interval that is longer
    stays as it is. ``attempts``: polls in a row that may fail; 0 or less: any number.
    """

    interval: float
    attempts: int = 0
    due: float = 0.0
    """When to look again."""
    fresh: bool = False
    """All that the session's last probe could not see was polled; else the table is polled when it is due."""
    awake_until: float = 0.0
    """No attempt to sleep before."""
    failures: int = 0
    """Polls in a row that failed."""
    locked: bool = False
    """The last poll found somebody else's lock."""
    _step: float = 0.0
    _blocked: float = 0.0
    _backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, limit=60.0))
    _locks: Backoff = field(default_factory=lambda: Backoff(first=0.2, limit=5.0))

    @property
    def ailing(self) -> bool:
        """Whether the last poll failed, or found the table locked."""
        return self.failures > 0 or self.locked

    def at_once(self, now: float) -> None:
        """The table may have changed: poll it, whatever a look says."""
        self.fresh, self.due = False, min(self.due, now)

    def found(self, now: float, *, settled: bool = True) -> None:
        """A poll published something."""
        self._step = self.interval
        self._next(now, settled)

    def quiet(self, now: float, *, notifying: bool, settled: bool = True) -> None:
        """A look found nothing."""
        most = max(self.interval, _NOTIFYING if notifying else _IDLE)
        longer = max(self._step * 2, self.interval, _SHORTEST)
        if longer <= most:
            self._step = longer
        elif self._step > most:
            self._step = self.interval
        self._next(now, settled)

    def ended(self) -> None:
        """A poll came to its end."""
        self.failures, self.locked = 0, False
        self._backoff.reset()
        self._locks.reset()

    def failed(self, now: float) -> bool:
        """A poll failed: try again after a pause; False where that was tried often enough."""
        self.failures += 1
        again = self.attempts <= 0 or self.failures < self.attempts
        self.due = now + max(self._backoff.pause(), self.interval) if again else math.inf
        return again

    def found_locked(self, now: float) -> None:
        """Somebody has locked the table: try again soon."""
        self.locked = True
        self.due = now + self._locks.pause()

    def blocked(self, now: float) -> None:
        """A writer that saw the source awake has not ended, and will not notify."""
        first, most = _BLOCKED
        self._blocked = min(most, self._blocked * 2 or first)
        self.due = self.awake_until = now + self._blocked

    def slept(self) -> None:
        """The table's writers notify now."""
        self._blocked = 0.0

    def relies(self, now: float) -> None:
        """They do because another source sleeps, which may wake or end without a word: try to sleep soon again."""
        self.awake_until = math.floor(now / _IDLE + 1.001) * _IDLE

    def _next(self, now: float, settled: bool) -> None:
        step = max(self._step, _SHORTEST)
        following = math.floor(now / step + 1.001) * step  # never now itself, whatever the last bit says
        self.due = following if settled else min(following, now + _SETTLING)
