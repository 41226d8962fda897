"""The times at which a table is polled: at each interval while it changes, else less often. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from compactory_connectors.backoff import Backoff

__all__ = ["PollResult", "Schedule"]

_SHORTEST = 0.001  # seconds between two checks of any table
_IDLE = 1.0  # seconds between two checks of a table that does not change
_NOTIFYING = 5.0  # of a table whose writers notify: a check only finds changes without a notification
_UNSETTLED = 0.2  # until the check of a table whose last changes a crash could take back; the server's wal_writer_delay
_HELD = 1.0  # between two attempts of a poll that an operator has to approve
_FIRST_SLEEP_PAUSE, _LONGEST_SLEEP_PAUSE = 0.002, 0.5  # between two attempts to sleep while a writer is open


class PollResult(Enum):
    """The result of a table's last poll."""

    SUCCEEDED = "succeeded"
    LOCKED = "locked"  # by another transaction; tried again soon
    FAILED = "failed"  # tried again after a pause, unless query.retry.attempts are used up


@dataclass(slots=True, kw_only=True)
class Schedule:
    """The schedule of one table. ``interval``: seconds of ``poll.interval.ms``. Times are those of the monotonic clock.

    Checks fall on a grid that tables have in common, so that one statement can ask about many tables. Steps double
    from the interval on until a check every second, or every five seconds where writers notify. A longer interval
    stays as it is. ``attempts``: polls in a row that may fail; 0 or less: any number.
    """

    interval: float
    attempts: int = 0
    due: float = 0.0
    """The time of the next check."""
    is_current: bool = False
    """True if all that the session's last probe could not see was polled. Else the table is polled when it is due."""
    awake_until: float = 0.0
    """The time of the next attempt to sleep."""
    failures: int = 0
    """Polls in a row that failed."""
    last_poll: PollResult = PollResult.SUCCEEDED
    _step: float = 0.0
    _sleep_pause: float = 0.0
    _backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, limit=60.0))
    _locks: Backoff = field(default_factory=lambda: Backoff(first=0.2, limit=5.0))

    @property
    def is_failing(self) -> bool:
        """True if the last poll failed, or found the table locked."""
        return self.last_poll is not PollResult.SUCCEEDED

    def poll_now(self, at: float) -> None:
        """Poll the table without a check: it may have changed."""
        self.is_current, self.due = False, min(self.due, at)

    def record_changes(self, at: float, *, is_settled: bool = True) -> None:
        """Set the next check after a poll that published something."""
        self._step = self.interval
        self._set_due(at, is_settled)

    def record_no_changes(self, at: float, *, is_notifying: bool, is_settled: bool = True) -> None:
        """Set the next check after one that found nothing."""
        longest = max(self.interval, _NOTIFYING if is_notifying else _IDLE)
        doubled = max(self._step * 2, self.interval, _SHORTEST)
        if doubled <= longest:
            self._step = doubled
        elif self._step > longest:
            self._step = self.interval
        self._set_due(at, is_settled)

    def record_success(self) -> None:
        self.failures, self.last_poll = 0, PollResult.SUCCEEDED
        self._backoff.reset()
        self._locks.reset()

    def record_failure(self, at: float) -> bool:
        """Try again after a pause. Return False if the last attempt failed."""
        self.failures, self.last_poll = self.failures + 1, PollResult.FAILED
        has_attempts = self.attempts <= 0 or self.failures < self.attempts
        self.due = at + max(self._backoff.pause(), self.interval) if has_attempts else math.inf
        return has_attempts

    def record_locked(self, at: float) -> None:
        """Try again soon: another transaction has locked the table."""
        self.last_poll = PollResult.LOCKED
        self.due = at + self._locks.pause()

    def record_hold(self, at: float) -> None:
        """An operator has to approve the poll: try again soon; an approval makes the table due at once."""
        self.due = at + max(_HELD, self.interval)

    def delay_sleep(self, at: float) -> None:
        """Try again to sleep after a pause: a writer is open that began while the source was awake and won't notify."""
        self._sleep_pause = min(_LONGEST_SLEEP_PAUSE, self._sleep_pause * 2 or _FIRST_SLEEP_PAUSE)
        self.due = self.awake_until = at + self._sleep_pause

    def record_sleep(self, at: float, *, is_shared: bool) -> None:
        """Note that the table's writers notify from now on.

        If they do so because another source sleeps (``is_shared``), try to sleep again soon: that source may wake.
        """
        self._sleep_pause = 0.0
        if is_shared:
            self.awake_until = _next_multiple(at, _IDLE)

    def _set_due(self, at: float, is_settled: bool) -> None:
        due = _next_multiple(at, max(self._step, _SHORTEST))
        self.due = due if is_settled else min(due, at + _UNSETTLED)


def _next_multiple(at: float, step: float) -> float:
    """Return the first multiple of ``step`` after ``at``; never ``at`` itself, whatever its last bit says."""
    return math.floor(at / step + 1.001) * step
