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
        """The newest tick that is not after ``now``, in UTC: sums and comparisons of local times forget the fold."""
        after = now.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=1)
        return next(CronSim(self.cron, after.astimezone(ZoneInfo(self.timezone)), reverse=True)).astimezone(UTC)

    def problems(self) -> Iterator[str]:
        """The problems of its settings."""
        try:
            CronSim(self.cron, datetime(2000, 1, 1, tzinfo=ZoneInfo(self.timezone)))
        except CronSimError as error:
            yield f"periodic job {self.name!r}: {self.cron!r} is no cron expression: {error}"
        except (ZoneInfoNotFoundError, ValueError):
            yield f"periodic job {self.name!r}: there is no time zone {self.timezone!r}"
