"""Bootstrap: 1,000,000 records of 110 bytes (lz4) become a directory in memory, beside a bare loop and peers.

And the article's own case: 50,000 terminals, where its Spring service took 2.51 s. The same processes say how much
memory they take once ready.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.peers import GLOBAL_TABLE, KTABLES, global_table, ktables
from benchmarks.rows import AT_LEAST, AT_MOST, Figures, Row, Wanted, beside, plain
from benchmarks.stage import Comparison, Measured, Stage, Terms, python

TERMINALS = 50_000
ARTICLE_SECONDS = 2.51
NAMES = {"apply": "as it comes", "read": 'validate="read"', "indexed": "active + unique index"}
WANTED = {
    ("apply", "bare"): 0.6,
    ("read", "bare"): 0.8,
    ("indexed", "bare"): 0.35,
    ("apply", "default"): 2.0,
    ("read", "default"): 2.5,
    ("apply", "table"): 2.0,
    ("read", "table"): 2.5,
    ("read", "ktables"): 1.8,
}
CALLED = {
    "bare": "bare loop",
    "default": f"{GLOBAL_TABLE} in memory, defaults",
    "table": f"{GLOBAL_TABLE} in memory, large polls",
    "ktables": f"{KTABLES}, raw",
}


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    found: dict[str, Comparison] = {f"bootstrap-{number}": partial(_bootstrap, number) for number in (1, 4)}
    return found | {"global-table-collectors": _collectors, "article": _article}


def _bootstrap(partitions: int, stage: Stage) -> Measured:
    entries = stage.terms.entries
    topic = stage.topic(entries, partitions)
    with stage.folder() as state:
        table = partial(global_table, stage.kafka, topic, "memory", state, entries=entries, threads=0)
        commands = {
            "bare": python("bare.consume", stage.kafka, topic),
            **{kind: python("store_load", stage.kafka, topic, kind, "--threads", 0) for kind in NAMES},
            "default": table(consumer="default"),
            "table": table(),
            "ktables": ktables(stage.kafka, topic, "raw"),
        }
        taken = stage.alternate(commands)
    return Measured(list(_rows(taken, entries, partitions)), taken.rounds)


def _rows(taken: Figures, entries: int, partitions: int) -> Iterator[Row]:
    of = f"{count(entries)} records, {partitions} partition{'s' * (partitions > 1)}"
    for (kind, peer), floor in WANTED.items():
        what = f"bootstrap of {of}, {NAMES[kind]}"
        yield beside(taken, what, kind, (peer, CALLED[peer]), loading, wanted=Wanted(AT_LEAST, floor))
    for (kind, peer), floor in WANTED.items():
        if peer == "default":
            what = f"launch of the process to ready, {of}, {NAMES[kind]}"
            wanted = Wanted(AT_LEAST, floor)
            yield beside(taken, what, kind, (peer, CALLED[peer]), launch, figure="launch_seconds", wanted=wanted)
    wanted = Wanted(AT_MOST, 1.0)
    for kind in ("apply", "indexed"):
        yield beside(
            taken,
            f"resident memory after ready, {of}, {NAMES[kind]}",
            kind,
            ("ktables", CALLED["ktables"]),
            resident,
            figure="rss_mb",
            wanted=wanted if kind == "apply" else None,
        )


def _collectors(stage: Stage) -> Measured:
    """What the JVM's collector does to GlobalKTable, so that nobody has to wonder."""
    entries = stage.terms.entries
    topic = stage.topic(entries)
    with stage.folder() as state:
        table = partial(global_table, stage.kafka, topic, "memory", state, entries=entries, threads=0)
        collectors = {
            "G1, the JVM's default (as compared with)": table(),
            "ParallelGC": table(collector="-XX:+UseParallelGC"),
        }
        taken = stage.alternate(collectors, rounds=min(3, stage.terms.rounds))
    rows = [row for name in collectors for row in plain(taken, f"{CALLED['table']}, {name}", name, loading)]
    return Measured(rows, taken.rounds)


def _article(stage: Stage) -> Measured:
    topic = stage.topic(TERMINALS)
    taken = stage.alternate({"ours": python("store_load", stage.kafka, topic, "apply", "--threads", 0)})
    seconds = taken.median("ours", "seconds")
    wanted = Wanted(AT_MOST, 0.25, "s")
    row = Row(
        what="50,000 records, start() in all",
        figure=f"{seconds:.3f} s",
        beside=f"the article {ARTICLE_SECONDS} s",
        ratio=ARTICLE_SECONDS / seconds,
        wanted=str(wanted),
        met=wanted.met(seconds),
    )
    return Measured([row], taken.rounds)


def count(entries: int) -> str:
    """Return a number of entries for people: 10 k, 1 M."""
    return f"{entries // 1_000_000} M" if entries >= 1_000_000 else f"{entries // 1000} k"


def loading(taken: Figures, name: str) -> str:
    """Describe how a program loaded."""
    seconds, entries, cpu, peak = (taken.median(name, figure) for figure in ("seconds", "entries", "cpu", "peak_mb"))
    return f"{seconds:.2f} s, {entries / seconds / 1e6:.2f} M/s, CPU {cpu:.2f} s, peak {peak:.0f} MB"


def launch(taken: Figures, name: str) -> str:
    """Describe how long a service waits for a program that was just launched."""
    return f"{taken.median(name, 'launch_seconds'):.2f} s"


def resident(taken: Figures, name: str) -> str:
    """Describe what a program takes once it is ready."""
    return f"{taken.median(name, 'rss_mb'):.0f} MB"
