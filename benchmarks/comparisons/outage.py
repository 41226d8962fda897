"""Lookups while Postgres is down for a third of the time, in a store and in Postgres itself."""

from __future__ import annotations

from statistics import median

from benchmarks.rows import AT_LEAST, Row, Wanted
from benchmarks.stage import Comparison, Measured, Stage, Terms, python

ENTRIES = 50_000


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"outage": _outage}


def _outage(stage: Stage) -> Measured:
    command = python("outage", stage.kafka, stage.topic(ENTRIES), ENTRIES)
    taken = stage.alternate({"outage": command}, rounds=1, warm=False)
    if "outage" not in taken.rounds:
        return Measured([], taken.rounds)
    [series] = taken.rounds["outage"]
    up, down = _phases(series["store"], series["step"])
    selects, _ = _phases(series["postgres"], series["step"])
    wanted = Wanted(AT_LEAST, 0.9)
    row = Row(
        what="lookups a second in a store while Postgres is down",
        figure=f"{down / 1000:.0f} k/s",
        beside=f"{up / 1000:.0f} k/s before; in Postgres {selects:.0f}/s before, then none",
        ratio=down / up,
        wanted=str(wanted),
        met=wanted.met(down / up),
    )
    return Measured([row], taken.rounds)


def _phases(counts: list[int], step: float) -> tuple[float, float]:
    """Return the median lookups a second in the first and in the middle third."""
    third = len(counts) // 3
    return median(counts[1:third]) / step, median(counts[third + 1 : 2 * third]) / step
