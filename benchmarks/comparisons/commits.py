"""How many single-row commits a second a source keeps up with, on an adopted table of 50,000 rows.

Writers, Postgres, Kafka, source and consumer share the machine: what is offered may be all that the writers can.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.rows import Figures, Row
from benchmarks.stage import Comparison, Measured, Stage, Terms, python

SECONDS = 20
WANTED = 5000
LAG = 1000.0  # milliseconds that a commit may take to be seen, at the most, in the median of the second half
OFFERED = {"steady": WANTED + 200, "most": 0}


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"commits": _commits}


def _commits(stage: Stage) -> Measured:
    commands = {name: python("commits_kept_up", stage.kafka, rate, SECONDS) for name, rate in OFFERED.items()}
    taken = stage.alternate(commands, warm=False)
    return Measured(list(_rows(taken)), taken.rounds)


def _rows(taken: Figures) -> Iterator[Row]:
    yield Row(
        what=f"single-row commits kept up with, {OFFERED['steady']:,}/s asked of eight writers",
        figure=_figure(taken, "steady"),
        wanted=f"≥ {WANTED:,}/s",
        met=taken.median("steady", "rate") >= WANTED and _kept_up(taken, "steady"),
    )
    yield Row(
        what="single-row commits, as many as eight writers can",
        figure=_figure(taken, "most") + ("" if _kept_up(taken, "most") else ", not kept up with"),
    )


def _kept_up(taken: Figures, name: str) -> bool:
    """Say whether the lag stayed bounded and nothing was lost, in every round."""
    return all(each["equal"] and each["second_half_ms"] <= LAG for each in taken.rounds[name])


def _figure(taken: Figures, name: str) -> str:
    rate, lag, cpu = (taken.median(name, figure) for figure in ("rate", "second_half_ms", "cpu_ms"))
    return f"{rate:,.0f} commits/s, lag p50 {lag:.0f} ms, CPU {cpu:.3f} ms a commit"
