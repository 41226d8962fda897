"""Processes of one machine that share a copy, beside as many that have one each."""

from __future__ import annotations

from benchmarks.comparisons.bootstrap import count
from benchmarks.rows import AT_LEAST, Figures, Row, Wanted
from benchmarks.stage import Comparison, Measured, Stage, Terms, python

__all__ = ["comparisons"]

NUMBERS = (1, 4, 8)


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"workers": _workers}


def _workers(stage: Stage) -> Measured:
    entries = stage.terms.entries
    topic = stage.topic(entries, purpose="workers")
    with stage.folder() as folder:
        commands = {}
        for number in NUMBERS:
            commands[f"own {number}"] = python("workers", stage.kafka, topic, entries, number)
            commands[f"shared {number}"] = python("workers", stage.kafka, topic, entries, number, folder / f"{number}")
        del commands["own 8"]  # 8 copies
        taken = stage.alternate(commands, rounds=1, warm=False)
    return Measured(list(_rows(taken, entries)), taken.rounds)


def _rows(taken: Figures, entries: int) -> list[Row]:
    def figure(name: str, what: str) -> float:
        return taken.median(name, what)

    wanted = Wanted(AT_LEAST, 0.8)
    what = f"view.get of {{}} processes that share a copy of {count(entries)} entries"
    rows = []
    for number, beside, text in ((4, 4 * figure("own 1", "rate"), "4 × one process with its own in memory"),
                                 (4, figure("own 4", "rate"), "4 processes with their own in memory"),
                                 (1, figure("own 1", "rate"), "one process with its own in memory")):  # fmt: skip
        rate = figure(f"shared {number}", "rate")
        ratio, bound = rate / beside, None if rows else wanted
        rows.append(
            Row(what=what.format(number), figure=f"{rate / 1e6:.2f} M/s", beside=f"{text} {beside / 1e6:.2f} M/s",
                ratio=ratio, wanted=str(bound or ""), met=bound and bound.met(ratio))
        )  # fmt: skip
    rows.append(
        Row(what="memory of 1, 4 and 8 processes that share it",
            figure=", ".join(f"{figure(f'shared {number}', 'memory_mb'):,.0f} MB" for number in NUMBERS),
            beside="1 and 4 with their own " + ", ".join(f"{figure(f'own {n}', 'memory_mb'):,.0f} MB" for n in (1, 4)))
    )  # fmt: skip
    for name in ("shared 8", "own 1"):
        who = "the last of 8 processes that share it" if name == "shared 8" else "one process with its own"
        p50, p99 = 1000 * figure(name, "p50"), 1000 * figure(name, "p99")
        rows.append(Row(what=f"acknowledged write to {who}", figure=f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"))
    return rows
