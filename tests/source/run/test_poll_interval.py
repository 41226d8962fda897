"""How often a table is looked at."""

from __future__ import annotations

from itertools import pairwise

import pytest

from compactory_connectors.source.run.poll_interval import PollInterval


def looks(poll_interval: PollInterval, seconds: float, *, notifying: bool = False) -> list[float]:
    """When a table that does not change is looked at."""
    now, times = 1000.0, []
    while now < 1000.0 + seconds:
        times.append(now)
        now = poll_interval.quiet(now, notifying=notifying)
    return times


@pytest.mark.parametrize(("interval", "longest"), [(0.1, 1.0), (0.3, 1.0), (1.0, 1.0), (5.0, 5.0), (3600.0, 3600.0)])
def test_idle_tables_are_asked_for_less_often_up_to_a_second(interval: float, longest: float) -> None:
    times = looks(PollInterval(interval=interval), 20 * longest)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert max(gaps) <= longest + 1e-6
    assert gaps[-1] >= min(longest, max(interval, 0.5 * longest)) - 1e-6


def test_tables_whose_writers_notify_are_looked_at_every_five_seconds() -> None:
    assert len(looks(PollInterval(interval=0.1), 60, notifying=True)) < 30
    assert len(looks(PollInterval(interval=0.001), 60)) < 150


def test_a_change_brings_the_interval_back() -> None:
    poll_interval = PollInterval(interval=0.1)
    looks(poll_interval, 10)
    assert poll_interval.found(2000.0) - 2000.0 <= 0.1 + 1e-6


def test_looks_at_tables_of_different_age_coincide() -> None:
    """One statement asks about all that is due."""
    old, new = PollInterval(interval=0.1), PollInterval(interval=0.1)
    looks(old, 10)
    at = new.quiet(1010.03, notifying=False)
    for _ in range(10):
        at = new.quiet(at, notifying=False)
    assert at == pytest.approx(old.quiet(at - 0.5, notifying=False))


def test_what_a_crash_could_take_back_is_looked_at_soon() -> None:
    assert PollInterval(interval=3600.0).quiet(1000.0, notifying=True, settled=False) <= 1000.2
    assert PollInterval(interval=3600.0).found(1000.0, settled=False) <= 1000.2


def test_a_silent_writer_is_waited_for_less_and_less_impatiently() -> None:
    poll_interval = PollInterval(interval=3600.0)
    pauses = [poll_interval.blocked(0.0) for _ in range(12)]
    assert pauses[0] == 0.002
    assert pauses == sorted(pauses)
    assert pauses[-1] == 0.5
    poll_interval.slept()
    assert poll_interval.blocked(0.0) == 0.002
