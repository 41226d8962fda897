"""Commit → record visible in a consumer, at 100 single-row commits a second on a table of 50,000 rows.

Beside it a bare loop: trigger NOTIFY → SELECT → produce, without restarts; with transactions it writes an offset too.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.rows import Figures, Row
from benchmarks.stage import Comparison, Measured, Stage, Terms, python

SECONDS = 10
SIDES = {
    "transactions": ("commit → record visible, transactions", "bare-transactions", (8.0, 25.0)),
    "off": ("commit → record visible, transactions off", "bare", (4.0, 15.0)),
}


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"latency": _latency}


def _latency(stage: Stage) -> Measured:
    modes = ["bare", "bare-transactions", *SIDES]
    commands = {mode: python("commit_visible", stage.kafka, mode, SECONDS) for mode in modes}
    taken = stage.alternate(commands, warm=False)
    return Measured(list(_rows(taken)), taken.rounds)


def _rows(taken: Figures) -> Iterator[Row]:
    for mode, (what, bare, (p50, p99)) in SIDES.items():
        yield Row(
            what=what,
            figure=_figure(taken, mode),
            beside=f"bare loop {_figure(taken, bare)}",
            ratio=taken.ratio(bare, mode, "p50_ms"),
            wanted=f"p50 ≤ {p50:g}, p99 ≤ {p99:g} ms",
            met=taken.median(mode, "p50_ms") <= p50 and taken.median(mode, "p99_ms") <= p99,
        )


def _figure(taken: Figures, mode: str) -> str:
    p50, p99, cpu = (taken.median(mode, figure) for figure in ("p50_ms", "p99_ms", "cpu_ms"))
    return f"p50 {p50:.1f}, p99 {p99:.1f} ms, CPU {cpu:.2f} ms a commit"
