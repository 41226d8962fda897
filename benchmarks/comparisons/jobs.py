"""Jobs: beside other queues, COPY and an empty table; groups, latency, dead rows, retention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from benchmarks.job_queues import SAMPLES, job_queues
from benchmarks.rows import AT_LEAST, AT_MOST, Figures, Row, Wanted, beside, plain
from benchmarks.stage import Comparison, Measured, Stage, Terms, python

JOBS = 30_000
"""Jobs of a run; few threads run half."""

QUEUE_JOBS = 100_000
"""Jobs of a run beside other queues; procrastinate runs a hundredth."""


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {
        "jobs-run": _run,
        "jobs-queues": _queues,
        "jobs-groups": _groups,
        "jobs-backlog": _backlog,
        "jobs-held": _held,
        "jobs-restart": _restart,
        "jobs-enqueue": _enqueue,
        "jobs-latency": _latency,
        "jobs-retention": _retention,
    }


def _run(stage: Stage) -> Measured:
    taken = _taken(stage, {"noop": JOBS})
    wanted = Wanted(AT_LEAST, 5000, "jobs/s")
    return Measured(
        [*plain(taken, "jobs, no-op, 30 at a time", "noop", _rate, figure="rate", wanted=wanted)], taken.rounds
    )


def _queues(stage: Stage) -> Measured:
    """Compare with other queues, each with its recommended settings. There is time for all rounds."""
    queues = job_queues(QUEUE_JOBS)
    unhurried = replace(stage, terms=replace(stage.terms, seconds=900.0))
    taken = unhurried.alternate({"Compactory": python("jobs_run", "queue", QUEUE_JOBS, SAMPLES), **queues}, warm=False)
    figures = {
        "rate": (f"jobs, no-op, {QUEUE_JOBS:,} enqueued, then worked", _rate, Wanted(AT_LEAST, 1)),
        "running_rate": (f"jobs, no-op, {QUEUE_JOBS:,} enqueued, workers running", _running_rate, Wanted(AT_LEAST, 1)),
        "p99_ms": ("jobs, enqueue → handler called, idle", _start_latency, Wanted(AT_MOST, 1)),
    }
    rows = [
        beside(taken, what, "Compactory", (name, name), describe, figure=figure, wanted=wanted)
        for figure, (what, describe, wanted) in figures.items()
        for name in queues
    ]
    return Measured(rows, taken.rounds)


def _groups(stage: Stage) -> Measured:
    """Bare threads with the same order in groups, which commit each end or all that have ended, are what can be had.

    Of few threads it is the same threads without a database: they sleep most of the time.
    """
    sizes = {"": JOBS, "-4": JOBS // 2, "-8": JOBS // 2}
    programs: dict[str, list[str]] = {}
    for suffix, jobs in sizes.items():
        programs |= {
            f"{name}{suffix}": python("jobs_run", f"{name}{suffix}", jobs) for name in ("millisecond", "groups")
        }
        for how in ("each", "batches", "nowhere"):
            programs[f"{how}{suffix}"] = python("bare.threads", suffix[1:] or 30, jobs, how)
    taken = stage.alternate(programs, warm=False)
    peers = {
        "each": ("bare threads, each end committed", Wanted(AT_LEAST, 0.9)),
        "batches": ("bare threads, ends committed together", None),
        "nowhere": ("bare threads, no database", Wanted(AT_LEAST, 0.9)),
        "millisecond": ("without groups", Wanted(AT_LEAST, 0.9)),
    }
    rows = [
        beside(
            taken,
            f"jobs of 1 ms in 100 groups, {suffix[1:] or 30} at a time",
            f"groups{suffix}",
            (f"{peer}{suffix}", called),
            _rate,
            figure="rate",
            wanted=wanted if suffix or peer != "nowhere" else None,
        )
        for suffix in sizes
        for peer, (called, wanted) in peers.items()
    ]
    return Measured(rows, taken.rounds)


def _backlog(stage: Stage) -> Measured:
    taken = _taken(stage, dict.fromkeys(("noop", "backlog"), JOBS))
    peer, wanted = ("noop", "an empty table"), Wanted(AT_LEAST, 0.8)
    row = beside(taken, "jobs, 1 M waiting and 1 M finished", "backlog", peer, _rate, figure="rate", wanted=wanted)
    return Measured([row], taken.rounds)


def _held(stage: Stage) -> Measured:
    """An hour's load is run once."""
    seconds = stage.terms.held
    programs = {"noop": python("jobs_run", "noop", JOBS)}
    programs |= {mode: python("jobs_run", mode, JOBS, seconds) for mode in ("held", "freed")}
    taken = stage.alternate(programs, rounds=1 if seconds > 60 else None, warm=False)
    dead = taken.median("held", "dead")
    rows = [
        beside(taken, what, name, ("noop", "an empty table"), _rate, figure="rate", wanted=Wanted(AT_LEAST, wanted))
        for name, what, wanted in (
            ("held", f"jobs, under a snapshot held for {seconds:,.0f} s of load, beside {dead:,.0f} dead rows", 0.8),
            ("freed", "jobs, just after that snapshot has ended", 0.95),
        )
    ]
    return Measured(rows, taken.rounds)


def _restart(stage: Stage) -> Measured:
    taken = _taken(stage, {"restart": 40 * JOBS})
    after, before = taken.median("restart", "rate"), taken.median("restart", "before")
    ratio = median(each["rate"] / each["before"] for each in taken.rounds["restart"])
    wanted = Wanted(AT_LEAST, 0.95)
    row = Row(
        what="jobs, 10 s after Postgres was killed and started again",
        figure=f"{after:,.0f} jobs/s, the first after {taken.median('restart', 'first_seconds'):.1f} s",
        beside=f"before {before:,.0f} jobs/s",
        ratio=ratio,
        wanted=str(wanted),
        met=wanted.met(ratio),
    )
    return Measured([row], taken.rounds)


def _taken(stage: Stage, modes: Mapping[str, int]) -> Figures:
    return stage.alternate({mode: python("jobs_run", mode, jobs) for mode, jobs in modes.items()}, warm=False)


def _rate(taken: Figures, name: str) -> str:
    return f"{taken.median(name, 'rate'):,.0f} jobs/s"


def _running_rate(taken: Figures, name: str) -> str:
    return f"{taken.median(name, 'running_rate'):,.0f} jobs/s"


def _start_latency(taken: Figures, name: str) -> str:
    p50, p99 = (taken.median(name, figure) for figure in ("p50_ms", "p99_ms"))
    return f"p50 {p50:.1f}, p99 {p99:.1f} ms"


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


def _retention(stage: Stage) -> Measured:
    taken = stage.alternate({"retention": python("jobs_run", "retention", JOBS)}, rounds=1, warm=False)
    third, last = (taken.median("retention", figure) for figure in ("third", "last"))
    row = Row(
        what="jobs, table of finished ones after nine times as long as they are kept",
        figure=f"{last:.1f} MB",
        beside=f"after three times {third:.1f} MB",
        ratio=last / third,
        wanted="≤ 1.5",
        met=last <= 1.5 * third,
    )
    return Measured([row], taken.rounds)
