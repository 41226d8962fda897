"""The story that the demo tells: a change goes through, Postgres goes away, lookups go on, Postgres comes back."""

from __future__ import annotations

import statistics
import time
from functools import partial

from ..terminal import number, seconds
from .narrator import Narrator
from .stage import Stage

__all__ = ["tell"]

_CHANGES = 20
_LOOKUP_SECONDS = 0.5


def tell(stage: Stage, narrator: Narrator) -> None:
    """Do and tell every step. Raises StepFailed when one does not end as it should."""
    with narrator.step("change", "UPDATE in Postgres") as step:
        times = [_change(stage, f"T{1 + 97 * count}", f"B{count}") for count in range(_CHANGES)]
        step.took = statistics.median(times)
        step.told = f"from COMMIT to lookup: median of {_CHANGES} updates, slowest {seconds(max(times))}"
    with narrator.step("stop", "stopping Postgres") as step:
        stage.postgres.stop()
        step.told = "Postgres is down"
    with narrator.step("lookups", "looking up without Postgres") as step:
        step.told = f"go on: {number(_lookups(stage))} a second in one thread"
    with narrator.step("start", "starting Postgres") as step:
        stage.postgres.start()
        step.told = "Postgres is back"
    with narrator.step("catch up", "UPDATE in Postgres") as step:
        _change(stage, "T4242", "B42")
        step.told = "a new change arrived: the source came back by itself"


def _change(stage: Stage, terminal: str, acquirer: str) -> float:
    """Change a row and wait until a lookup shows it; seconds from the commit."""
    with stage.connect() as connection:
        connection.execute(
            "UPDATE terminal_acquirer SET acquirer_id = %s WHERE terminal_id = %s AND is_active", [acquirer, terminal]
        )
        committed = time.perf_counter()
        arrived = partial(_shows, stage, terminal, acquirer)
        stage.wait(arrived, f"the change of {terminal} did not arrive", pause=0.0005)
        return time.perf_counter() - committed


def _shows(stage: Stage, terminal: str, acquirer: str) -> bool:
    return bool(stage.view[terminal]["acquirerId"] == acquirer)


def _lookups(stage: Stage) -> int:
    """Lookups a second."""
    view, keys = stage.view, [f"T{number}" for number in range(1, 1001)]
    count, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < _LOOKUP_SECONDS:
        for key in keys:
            view[key]
        count += len(keys)
    return round(count / took)
