"""Periodic jobs: which tick of a cron expression was the last, and whose turn it is to enqueue its job."""

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

    def last_tick(self, now: datetime) -> datetime:
        """Return the newest tick that is not after ``now``, in UTC: sums of local times forget the fold.

        A daily tick in a repeated hour is in the first pass. In the second pass its local time may be later than that
        of ``now``, though it has passed. So the search begins later, by as much as the clocks were set back.
        """
        zone = ZoneInfo(self.timezone)
        after = now.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=1)
        start = (after + _set_back(after.astimezone(zone))).astimezone(zone)
        ticks = (tick.astimezone(UTC) for tick in CronSim(self.cron, start, reverse=True))
        return next(tick for tick in ticks if tick <= now)

    def problems(self) -> Iterator[str]:
        """Yield the problems of its settings."""
        try:
            CronSim(self.cron, datetime(2000, 1, 1, tzinfo=ZoneInfo(self.timezone)))
        except CronSimError as error:
            yield f"periodic job {self.name!r}: {self.cron!r} is no cron expression: {error}"
        except (ZoneInfoNotFoundError, ValueError):
            yield f"periodic job {self.name!r}: there is no time zone {self.timezone!r}"


def _set_back(local: datetime) -> timedelta:
    """Return by how much clocks were set back where this local time comes twice; else 0."""
    first, second = local.replace(fold=0).utcoffset(), local.replace(fold=1).utcoffset()
    assert first is not None
    assert second is not None
    return max(first - second, timedelta(0))
