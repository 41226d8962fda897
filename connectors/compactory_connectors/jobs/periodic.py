"""Periodic jobs: the ticks of a cron expression. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from .job import NewJob

__all__ = ["Periodic"]


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
        """Yield the problems of the settings."""
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
