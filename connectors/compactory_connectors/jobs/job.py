"""Jobs for callers: to enqueue, now or periodically, and for handlers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from numbers import Real
from typing import Any, Generic, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from compactory_connectors.retry import CENTURY

__all__ = ["TENANT", "Cancel", "Job", "NewJob", "Periodic", "Snooze"]

TENANT = "tenant"
"""The header that names the tenant."""

P = TypeVar("P")


class Snooze(Exception):
    """Raised by a handler to run the job again after ``seconds``. The attempt does not count.

    Negative seconds count as 0. Raises ValueError for more than a century, and for a value that is not a number.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        value: object = seconds
        if not (isinstance(value, Real) and value <= CENTURY):  # false for NaN too
            raise ValueError(f"Snooze takes a number of seconds, at most {CENTURY:.0f}, a century: not {seconds!r}")
        self.seconds = max(0.0, float(seconds))


class Cancel(Exception):
    """Raised by a handler to cancel the job, with a reason."""


@dataclass(slots=True, kw_only=True)  # not frozen: that takes four times as long to make
class NewJob:
    """A job to be enqueued. ``payload`` is what the type's handler takes; see :meth:`Jobs.enqueue` for the others."""

    type: str
    payload: Any = field(default_factory=dict, repr=False)
    group: str | None = None
    origin: str | None = None
    run_at: datetime | None = None
    last_only: bool = False
    unique_key: str | None = None
    headers: Mapping[str, str] | None = None


@dataclass(slots=True, kw_only=True)  # not frozen either
class Job(Generic[P]):
    """A job for its handler. ``attempt`` counts from 1. Times are by Postgres' clock."""

    id: int
    type: str
    payload: P = field(repr=False)
    group: str | None
    origin: str | None
    attempt: int
    headers: Mapping[str, str]
    run_at: datetime
    created_at: datetime
    is_stopping: Callable[[], bool] = field(default=lambda: False, repr=False)

    @property
    def tenant(self) -> str | None:
        """The tenant that the job was enqueued for."""
        return self.headers.get(TENANT)

    @property
    def stopping(self) -> bool:
        """True if the handler should end soon: it timed out or was cancelled, or the executor stops or lost the job."""
        return self.is_stopping()


@dataclass(frozen=True, slots=True, kw_only=True)
class Periodic:
    """A job for each tick of ``cron``, five fields in the time zone ``timezone``."""

    name: str
    cron: str
    timezone: str
    job: NewJob

    def last_tick(self, clock: datetime) -> datetime:
        """Return the newest tick that is not after ``clock``, in UTC.

        A daily tick in a repeated hour is in the first pass. In the second pass its local time may be later than the
        clock, although the tick has passed. So the search starts later, by as much as the clocks were set back.
        """
        zone = ZoneInfo(self.timezone)
        start = clock.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=1)
        start = (start + _set_back(start.astimezone(zone))).astimezone(zone)
        ticks = (tick.astimezone(UTC) for tick in CronSim(self.cron, start, reverse=True))
        return next(tick for tick in ticks if tick <= clock)

    def problems(self) -> Iterator[str]:
        try:
            CronSim(self.cron, datetime(2000, 1, 1, tzinfo=ZoneInfo(self.timezone)))
        except CronSimError as error:
            yield f"periodic job {self.name!r}: {self.cron!r} is no cron expression: {error}"
        except (ZoneInfoNotFoundError, ValueError):
            yield f"periodic job {self.name!r}: there is no time zone {self.timezone!r}"


def _set_back(local: datetime) -> timedelta:
    """Return by how much clocks were set back if this local time comes twice, else 0."""
    first, second = local.replace(fold=0).utcoffset(), local.replace(fold=1).utcoffset()
    assert first is not None
    assert second is not None
    return max(first - second, timedelta(0))
