"""Jobs: an executor beside procrastinate on the same Postgres; enqueueing beside COPY; groups; latency; dead rows."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.rows import Figures, Row
from benchmarks.stage import Comparison, Measured, Stage, Terms, python

JOBS = 30_000
"""Jobs of a run; procrastinate runs a tenth of them."""


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"jobs-run": _run, "jobs-enqueue": _enqueue, "jobs-latency": _latency}


def _run(stage: Stage) -> Measured:
    commands = {
        name: python("_jobs_run", name, JOBS // 10 if name == "procrastinate" else JOBS)
        for name in ("procrastinate", "noop", "millisecond", "groups", "backlog", "held")
    }
    taken = stage.alternate(commands, warm=False)
    return Measured(list(_run_rows(taken)), taken.rounds)


def _run_rows(taken: Figures) -> Iterator[Row]:
    for name, peer, what, wanted in (
        ("noop", "procrastinate", "jobs, no-op, 30 at a time", 10),
        ("groups", "millisecond", "jobs of 1 ms in 100 groups", 0.9),
        ("backlog", "noop", "jobs, 1 M waiting and 1 M finished", 0.8),
        ("held", "noop", "jobs, behind as many dead rows and a held snapshot", 0.8),
    ):
        if name not in taken.rounds or peer not in taken.rounds:
            continue
        ratio = _rate(taken, name) / _rate(taken, peer)
        yield Row(
            what=what,
            figure=f"{_rate(taken, name):,.0f} jobs/s",
            beside=f"{'without groups' if peer == 'millisecond' else peer} {_rate(taken, peer):,.0f} jobs/s",
            ratio=ratio,
            wanted=f"≥ {wanted:g}",
            met=ratio >= wanted and (name != "noop" or _rate(taken, name) >= 5000),
        )


def _rate(taken: Figures, name: str) -> float:
    return taken.median(name, "jobs") / taken.median(name, "seconds")


def _enqueue(stage: Stage) -> Measured:
    taken = stage.alternate({"enqueue": python("_jobs_run", "enqueue", 100_000)}, warm=False)
    ours, copy = taken.median("enqueue", "seconds"), taken.median("enqueue", "copy")
    row = Row(
        what="jobs, 100,000 enqueued, 1,000 a statement",
        figure=f"{ours:.2f} s",
        beside=f"COPY {copy:.2f} s",
        ratio=ours / copy,
        wanted="≤ 3",
        met=ours <= 3 * copy,
    )
    return Measured([row], taken.rounds)


def _latency(stage: Stage) -> Measured:
    taken = stage.alternate({"latency": python("_jobs_run", "latency", 300)}, warm=False)
    p50, p99 = (taken.median("latency", figure) for figure in ("p50_ms", "p99_ms"))
    row = Row(
        what="jobs, commit → handler called, idle",
        figure=f"p50 {p50:.1f}, p99 {p99:.1f} ms",
        beside="–",
        ratio=p50 / 5,
        wanted="p50 ≤ 5, p99 ≤ 30 ms",
        met=p50 <= 5 and p99 <= 30,
    )
    return Measured([row], taken.rounds)
