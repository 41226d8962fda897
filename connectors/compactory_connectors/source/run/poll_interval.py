"""How often a table is looked at: at each interval while it changes, less often while it does not. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["BUSY", "PollInterval"]

BUSY = 8
"""Notifications in a row that came while their table was polled, after which its writers are asked to stay silent."""

_SHORTEST = 0.001  # seconds between two looks at anything
_IDLE = 1.0  # seconds between two looks at a table that does not change
_NOTIFYING = 5.0  # at one whose writers notify: a look only finds what they failed to tell
_SETTLING = 0.2  # until a look at a table whose last changes a crash could take back; the server's wal_writer_delay
_BLOCKED = (0.002, 0.5)  # between two attempts to sleep while a silent writer's transaction is open


@dataclass(slots=True, kw_only=True)
class PollInterval:
    """When to look at one table. ``interval``: seconds of ``poll.interval.ms``. Times are those of the monotonic clock.

    Looks fall on a grid that tables have in common, so that one statement can ask about many: steps double from the
    interval on until a look every second, or every five seconds where writers notify; an interval that is longer
    stays as it is.
    """

    interval: float
    fresh: bool = False
    """All that the session's last probe could not see was polled; else the table is polled when it is due."""
    awake_until: float = 0.0
    """No attempt to sleep before."""
    _step: float = 0.0
    _blocked: float = 0.0

    def found(self, now: float, *, settled: bool = True) -> float:
        """A poll published something; when to look again."""
        self._step = self.interval
        return self._next(now, settled)

    def quiet(self, now: float, *, notifying: bool, settled: bool = True) -> float:
        """A look found nothing; when to look again."""
        most = max(self.interval, _NOTIFYING if notifying else _IDLE)
        longer = max(self._step * 2, self.interval, _SHORTEST)
        if longer <= most:
            self._step = longer
        elif self._step > most:
            self._step = self.interval
        return self._next(now, settled)

    def blocked(self, now: float) -> float:
        """A writer that saw the source awake has not ended, and will not notify; when to look again."""
        first, most = _BLOCKED
        self._blocked = min(most, self._blocked * 2 or first)
        self.awake_until = now + self._blocked
        return self.awake_until

    def slept(self) -> None:
        """The table's writers notify now."""
        self._blocked = 0.0

    def relies(self, now: float) -> None:
        """They do because another source sleeps, which may wake or end without a word: try to sleep soon again."""
        self.awake_until = math.floor(now / _IDLE + 1.001) * _IDLE

    def _next(self, now: float, settled: bool) -> float:
        step = max(self._step, _SHORTEST)
        following = math.floor(now / step + 1.001) * step  # never now itself, whatever the last bit says
        return following if settled else min(following, now + _SETTLING)
