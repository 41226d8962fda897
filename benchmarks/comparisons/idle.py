"""Idle tables: what a source asks and uses while nothing changes that it polls."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.rows import AT_MOST, Figures, Row, Wanted, plain
from benchmarks.stage import Comparison, Measured, Stage, Terms, python

TABLES = 100
ROUNDS = 1  # each watches 20 seconds
CASES = {
    "adopted": (5000, "adopted", "quiet", "adopted, nobody commits"),
    "adopted-100": (100, "adopted", "busy", "adopted, poll.interval.ms=100, others commit 200 times a second"),
    "as-is": (5000, "as_is", "busy", "as they are, others commit 200 times a second"),
    "as-is-100": (100, "as_is", "busy", "as they are, poll.interval.ms=100, others commit 200 times a second"),
}


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"idle": _idle}


def _idle(stage: Stage) -> Measured:
    commands = {
        name: python("source_idle", stage.kafka, TABLES, interval, kind, bustle, 1)
        for name, (interval, kind, bustle, _) in CASES.items()
    }
    taken = stage.alternate(commands, rounds=ROUNDS, warm=False)
    return Measured(list(_rows(taken)), taken.rounds)


def _rows(taken: Figures) -> Iterator[Row]:
    for name, (*_, words) in CASES.items():
        what = f"{TABLES} idle tables, {words}"
        wanted = Wanted(AT_MOST, 5, "statements/s")
        yield from plain(taken, what, name, _statements, figure="statements", wanted=wanted)
        wanted = Wanted(AT_MOST, 1, "% of a core")
        yield from plain(taken, what, name, _processor, figure="source_cpu", wanted=wanted)


def _statements(taken: Figures, name: str) -> str:
    return f"{taken.median(name, 'statements'):.1f} statements/s"


def _processor(taken: Figures, name: str) -> str:
    own, server = (taken.median(name, figure) for figure in ("source_cpu", "server_cpu"))
    return f"source {own:.2f} %, its backends {server:.2f} % of a core"
