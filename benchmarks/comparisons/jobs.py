"""Jobs: an executor beside procrastinate on the same Postgres; enqueueing beside COPY; groups; latency; dead rows."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.rows import AT_LEAST, Figures, Row, Wanted, beside, plain
from benchmarks.stage import Comparison, Measured, Stage, Terms, python

JOBS = 30_000
"""Jobs of a run; procrastinate, and four threads, run a tenth of them."""


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"jobs-run": _run, "jobs-enqueue": _enqueue, "jobs-latency": _latency}


def _run(stage: Stage) -> Measured:
    modes = ("procrastinate", "noop", "millisecond", "groups", "millisecond-4", "groups-4", "backlog", "held", "freed")
    commands = {
        name: python("jobs_run", name, JOBS // 10 if name in {"procrastinate", "millisecond-4", "groups-4"} else JOBS)
        for name in modes
    }
    taken = stage.alternate(commands, warm=False)
    return Measured(list(_run_rows(taken)), taken.rounds)


def _run_rows(taken: Figures) -> Iterator[Row]:
    quick = "jobs, no-op, 30 at a time"
    yield from plain(taken, quick, "noop", _rate, figure="rate", wanted=Wanted(AT_LEAST, 5000, "jobs/s"))
    for name, peer, what, wanted in (
        ("noop", ("procrastinate", "procrastinate"), quick, 10),
        ("groups", ("millisecond", "without groups"), "jobs of 1 ms in 100 groups, 30 at a time", 0.9),
        ("groups-4", ("millisecond-4", "without groups"), "jobs of 1 ms in 100 groups, 4 at a time", 0.9),
        ("backlog", ("noop", "an empty table"), "jobs, 1 M waiting and 1 M finished", 0.8),
        ("held", ("noop", "an empty table"), "jobs, behind dead rows and a held snapshot", 0.8),
        ("freed", ("noop", "an empty table"), "jobs, just after a held snapshot has ended", 0.95),
    ):
        yield beside(taken, what, name, peer, _rate, figure="rate", wanted=Wanted(AT_LEAST, wanted))


def _rate(taken: Figures, name: str) -> str:
    return f"{taken.median(name, 'rate'):,.0f} jobs/s"


def _enqueue(stage: Stage) -> Measured:
    taken = stage.alternate({"enqueue": python("jobs_run", "enqueue", 100_000)}, warm=False)
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
    taken = stage.alternate({"latency": python("jobs_run", "latency", 300)}, warm=False)
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
