"""Ticks of periodic jobs on the days on which clocks are set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from compactory_connectors.jobs import NewJob
from compactory_connectors.jobs.job import Periodic

SPRING, AUTUMN = datetime(2026, 3, 28, 21, tzinfo=UTC), datetime(2026, 10, 24, 21, tzinfo=UTC)


def ticks(cron: str, midnight: datetime) -> list[str]:
    """The ticks (UTC) that an executor sees which looks each minute of the day from this midnight of Tallinn on."""
    periodic = Periodic(name="a", cron=cron, timezone="Europe/Tallinn", job=NewJob(type="a"))
    newest, seen = periodic.last_tick(midnight - timedelta(minutes=1)), []
    for minute in range(24 * 60):
        if (tick := periodic.last_tick(midnight + timedelta(minutes=minute))) > newest:  # as the database has it
            newest = tick
            seen.append(f"{tick:%H:%M}")
    return seen


@pytest.mark.parametrize(
    ("zone", "before"),
    [
        ("Europe/Tallinn", AUTUMN),
        ("Australia/Lord_Howe", datetime(2026, 4, 4, 12, tzinfo=UTC)),  # set back by half an hour
        ("America/Havana", datetime(2026, 11, 1, 2, tzinfo=UTC)),  # at midnight
    ],
)
@pytest.mark.parametrize(
    "cron", ["30 0 * * *", "45 1 * * *", "30 3 * * *", "30 1-4 * * *", "*/20 3 * * *", "* * * * *"]
)
def test_the_last_tick_never_goes_back(cron: str, zone: str, before: datetime) -> None:
    """Also while an hour is repeated, in which a daily tick of the first pass has passed already."""
    periodic = Periodic(name="a", cron=cron, timezone=zone, job=NewJob(type="a"))
    clock = [before + timedelta(minutes=5 * number) for number in range(100)]
    seen = [periodic.last_tick(now) for now in clock]
    assert seen == sorted(seen)
    assert all(tick <= now for tick, now in zip(seen, clock, strict=True))


@pytest.mark.parametrize("midnight", [SPRING, AUTUMN])
def test_no_hour_is_without_its_ticks(midnight: datetime) -> None:
    clock = [midnight + timedelta(minutes=20 * number) for number in range(3 * 24)]
    assert ticks("*/20 * * * *", midnight) == [f"{time:%H:%M}" for time in clock]


@pytest.mark.parametrize("midnight", [SPRING, AUTUMN])
@pytest.mark.parametrize("cron", ["0 0 * * *", "30 2 * * *", "30 3 * * *", "0 4 * * *"])
def test_a_daily_job_runs_once(cron: str, midnight: datetime) -> None:
    assert len(ticks(cron, midnight)) == 1
