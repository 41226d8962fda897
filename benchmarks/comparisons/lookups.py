"""Reads in memory: ``view.get`` decoded, afresh and shared, beside GlobalKTable; four readers under 5,000 changes/s."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.comparisons.bootstrap import count, resident
from benchmarks.comparisons.disk import reading, undecoded
from benchmarks.peers import GLOBAL_TABLE, KTABLES, global_table, ktables
from benchmarks.rows import AT_LEAST, Figures, Row, Wanted, beside
from benchmarks.stage import Comparison, Measured, Stage, Terms, python

CHANGES = 5000  # a second
READERS = 4
SECONDS = 3.0
CHANGING = 100_000  # entries
PEER = ("table", f"{GLOBAL_TABLE} in memory")


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"lookups": _lookups, "readers": _readers}


def _lookups(stage: Stage) -> Measured:
    entries = stage.terms.entries
    topic = stage.topic(entries)
    with stage.folder() as state:
        commands = {
            "apply": python("store_load", stage.kafka, topic, "apply"),
            "cached": python("store_load", stage.kafka, topic, "cached"),
            "table": global_table(stage.kafka, topic, "memory", state, entries=entries),
            "raw": global_table(stage.kafka, topic, "memory", state, entries=entries, values="raw"),
            "bare": python("bare.consume", stage.kafka, topic, "reads"),
            "ktables": ktables(stage.kafka, topic, "json", "reads"),
        }
        taken = stage.alternate(commands, warm=False)
    return Measured(list(_rows(taken, entries)), taken.rounds)


def _rows(taken: Figures, entries: int) -> Iterator[Row]:
    what = f"view.get, {count(entries)} entries, decoded"
    shared = f"{KTABLES}, decoded once, one mutable object for all readers"
    for name, called, peer, bound in (
        ("apply", f"{what} afresh", PEER, 2.0),
        ("cached", f"{what}, cache_decoded", PEER, 4.0),
        ("apply", f"{what} afresh", ("bare", "dict and orjson.loads"), None),
        ("cached", f"{what}, cache_decoded", ("ktables", shared), None),
    ):
        wanted = None if bound is None else Wanted(AT_LEAST, bound)
        yield beside(taken, called, name, peer, reading, figure="rate", wanted=wanted)
    raw = ("raw", f"{PEER[1]}, bytes")
    what = f"view.raw, {count(entries)} entries"
    yield beside(undecoded(taken, "apply"), what, "apply", raw, reading, figure="rate")
    decoded = ("ktables", f"{KTABLES}, decoded")
    what = f"resident memory after ready, {count(entries)} entries"
    yield beside(taken, what, "apply", decoded, resident, figure="rss_mb")


def _readers(stage: Stage) -> Measured:
    topic = stage.topic(CHANGING, purpose="readers")
    options = ["--threads", READERS, "--seconds", SECONDS]
    with stage.folder() as state, _changing(stage.kafka, topic):
        commands = {
            "ours": python("store_load", stage.kafka, topic, "apply", *options),
            "cached": python("store_load", stage.kafka, topic, "cached", *options),
            "one": python("store_load", stage.kafka, topic, "apply", "--threads", 1, "--seconds", SECONDS),
            "table": global_table(
                stage.kafka, topic, "memory", state, entries=CHANGING, threads=READERS, seconds=SECONDS
            ),
        }
        taken = stage.alternate(commands, warm=False)
    what = f"view.get, {READERS} threads together, under {CHANGES:,} changes/s"
    rows = [
        beside(taken, what, "ours", PEER, reading, figure="rate"),
        beside(taken, f"{what}, cache_decoded", "cached", PEER, reading, figure="rate"),
        beside(taken, what, "ours", ("one", "one thread"), reading, figure="rate"),
    ]
    return Measured(rows, taken.rounds)


@contextmanager
def _changing(kafka: str, topic: str) -> Iterator[None]:
    """Have the topic's entries changed meanwhile."""
    writer = subprocess.Popen(python("changes", kafka, topic, CHANGES, CHANGING), stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        yield
    finally:
        writer.terminate()
        writer.wait()
