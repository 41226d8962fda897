"""Ticks of periodic jobs on the days on which clocks are set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from compactory_connectors.jobs import NewJob
from compactory_connectors.jobs.periodic import Periodic

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


@pytest.mark.parametrize("midnight", [SPRING, AUTUMN])
def test_no_hour_is_without_its_ticks(midnight: datetime) -> None:
    clock = [midnight + timedelta(minutes=20 * number) for number in range(3 * 24)]
    assert ticks("*/20 * * * *", midnight) == [f"{time:%H:%M}" for time in clock]


@pytest.mark.parametrize("midnight", [SPRING, AUTUMN])
@pytest.mark.parametrize("cron", ["0 0 * * *", "30 2 * * *", "30 3 * * *", "0 4 * * *"])
def test_a_daily_job_runs_once(cron: str, midnight: datetime) -> None:
    assert len(ticks(cron, midnight)) == 1
