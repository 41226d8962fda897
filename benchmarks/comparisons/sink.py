"""The sink: records into a table, beside plainly written loops with the same offset rule and Debezium's JDBC sink."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.debezium import jars
from benchmarks.rows import AT_LEAST, AT_MOST, Figures, Row, Wanted, beside, plain
from benchmarks.stage import Absent, Comparison, Measured, Stage, Terms, python

SECONDS = 10
"""How long records are produced of which the latency is taken."""


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"sink-load": _load, "sink-latency": _latency}


def _load(stage: Stage) -> Measured:
    folder = jars()
    commands = {
        name: python("sink_load", stage.kafka, name, stage.terms.entries // share)
        for name, share in (("bare", 1), ("rows", 10), ("sink", 1), ("failing", 1), ("schema", 1))
    }
    debezium = (
        folder
        if isinstance(folder, Absent)
        else python("sink_load", stage.kafka, "debezium", stage.terms.entries, folder)
    )
    taken = stage.alternate({**commands, "debezium": debezium}, warm=False)
    return Measured(list(_rows(taken)), taken.rounds)


def _rows(taken: Figures) -> Iterator[Row]:
    for ours, name, called, what, bound in (
        ("sink", "bare", "pipelined executemany", "sink, upsert", 1.5),
        ("sink", "rows", "a statement for each record", "sink, upsert", 10),
        (
            "schema",
            "debezium",
            "Debezium's JDBC sink",
            "sink, upsert, JSON with its schema",
            1.5,
        ),
        ("failing", "sink", "none", "sink, 1 % set aside", 0.5),
    ):
        figure = "steady_rate" if name == "debezium" else "rate"
        yield beside(
            taken,
            what,
            ours,
            (name, called),
            lambda figures, program, figure=figure: _rate(figures, program, figure),
            figure=figure,
            wanted=Wanted(AT_LEAST, bound),
        )
    yield from plain(
        taken,
        "sink, memory with all records behind",
        "sink",
        lambda figures, program: f"{figures.median(program, 'megabytes'):.0f} MB",
        figure="megabytes",
        wanted=Wanted(AT_MOST, 200, "MB"),
    )


def _rate(taken: Figures, name: str, figure: str) -> str:
    return f"{taken.median(name, figure) / 1000:.1f} k records/s"


def _latency(stage: Stage) -> Measured:
    taken = stage.alternate({"latency": python("sink_visible", stage.kafka, SECONDS)}, warm=False)
    rows = [
        row
        for cut, bound in (("p50_ms", 10), ("p99_ms", 40))
        for row in plain(
            taken,
            f"sink, record produced → row committed, 100/s, {cut[:3]}",
            "latency",
            lambda figures, program, cut=cut: f"{figures.median(program, cut):.1f} ms",
            figure=cut,
            wanted=Wanted(AT_MOST, bound, "ms"),
        )
    ]
    return Measured(rows, taken.rounds)
