"""The sink: records into a table, beside plainly written loops with the same offset rule."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.rows import Figures, Row
from benchmarks.stage import Comparison, Measured, Stage, Terms, python

SIDES = ("bare", "rows", "sink", "failing")


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"sink-load": _load}


def _load(stage: Stage) -> Measured:
    commands = {mode: python("sink_load", stage.kafka, mode, stage.terms.entries) for mode in SIDES}
    taken = stage.alternate(commands, warm=False)
    return Measured(list(_rows(taken)), taken.rounds)


def _rows(taken: Figures) -> Iterator[Row]:
    for name, peer, what, wanted in (
        ("sink", "bare", "sink, upsert; pipelined executemany", 1.5),
        ("sink", "rows", "sink, upsert; a statement for each record", 10.0),
        ("failing", "sink", "sink, 1 % set aside; none", 0.5),
    ):
        ratio = taken.ratio(name, peer)
        yield Row(
            what=what,
            figure=_rate(taken, name),
            beside=f"{peer} {_rate(taken, peer)}",
            ratio=ratio,
            wanted=f"≥ {wanted:g}",
            met=ratio >= wanted,
        )


def _rate(taken: Figures, name: str) -> str:
    rate = taken.median(name, "records") / taken.median(name, "seconds")
    return f"{rate / 1000:.0f} k records/s, {taken.median(name, 'megabytes'):.0f} MB"
