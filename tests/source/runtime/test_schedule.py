"""How often a table is looked at."""

from __future__ import annotations

from itertools import pairwise

import pytest

from compactory_connectors.source.runtime.schedule import Schedule


def looks(schedule: Schedule, seconds: float, *, notifying: bool = False) -> list[float]:
    """When a table that does not change is looked at."""
    now, times = 1000.0, []
    while now < 1000.0 + seconds:
        times.append(now)
        schedule.record_no_changes(now, is_notifying=notifying)
        now = schedule.due
    return times


@pytest.mark.parametrize(("interval", "longest"), [(0.1, 1.0), (0.3, 1.0), (1.0, 1.0), (5.0, 5.0), (3600.0, 3600.0)])
def test_idle_tables_are_asked_for_less_often_up_to_a_second(interval: float, longest: float) -> None:
    times = looks(Schedule(interval=interval), 20 * longest)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert max(gaps) <= longest + 1e-6
    assert gaps[-1] >= min(longest, max(interval, 0.5 * longest)) - 1e-6


def test_tables_whose_writers_notify_are_looked_at_every_five_seconds() -> None:
    assert len(looks(Schedule(interval=0.1), 60, notifying=True)) < 30
    assert len(looks(Schedule(interval=0.001), 60)) < 150


def test_a_change_brings_the_interval_back() -> None:
    schedule = Schedule(interval=0.1)
    looks(schedule, 10)
    schedule.record_changes(2000.0)
    assert schedule.due - 2000.0 <= 0.1 + 1e-6


def test_looks_at_tables_of_different_age_coincide() -> None:
    """One statement asks about all that is due."""
    old, new = Schedule(interval=0.1), Schedule(interval=0.1)
    looks(old, 10)
    new.record_no_changes(1010.03, is_notifying=False)
    for _ in range(10):
        new.record_no_changes(new.due, is_notifying=False)
    old.record_no_changes(new.due - 0.5, is_notifying=False)
    assert new.due == pytest.approx(old.due)


def test_what_a_crash_could_take_back_is_looked_at_soon() -> None:
    quiet, found = Schedule(interval=3600.0), Schedule(interval=3600.0)
    quiet.record_no_changes(1000.0, is_notifying=True, is_settled=False)
    found.record_changes(1000.0, is_settled=False)
    assert max(quiet.due, found.due) <= 1000.2


def test_a_silent_writer_is_waited_for_less_and_less_impatiently() -> None:
    schedule = Schedule(interval=3600.0)
    pauses = []
    for _ in range(12):
        schedule.delay_sleep(0.0)
        pauses.append(schedule.due)
    assert pauses[0] == 0.002
    assert pauses == sorted(pauses)
    assert pauses[-1] == 0.5
    schedule.record_sleep(0.0, is_shared=False)
    schedule.delay_sleep(0.0)
    assert schedule.due == schedule.awake_until == 0.002


def test_a_table_that_fails_is_given_up_after_so_many_attempts() -> None:
    schedule = Schedule(interval=5.0, attempts=2)
    assert schedule.record_failure(1000.0)
    assert 1005.0 <= schedule.due < 1010.0
    assert not schedule.record_failure(1010.0)
    assert (schedule.due, schedule.is_failing) == (float("inf"), True)
    schedule.record_success()
    assert not schedule.is_failing
    assert all(Schedule(interval=5.0, attempts=attempts).record_failure(1000.0) for attempts in (-1, 0, 2))
