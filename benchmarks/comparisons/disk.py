"""On disk: bootstrap into RocksDB and reads from it beside GlobalKTable's, restart with what is there already."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.comparisons.bootstrap import count, launch, loading
from benchmarks.peers import GLOBAL_TABLE, global_table
from benchmarks.rows import AT_LEAST, AT_MOST, Figures, Row, Wanted, beside, plain
from benchmarks.stage import Comparison, Measured, Stage, Terms, python
from benchmarks.topics import append

NEW = 1000  # records that came while nobody was running
PEER = ("table", f"{GLOBAL_TABLE} on RocksDB")


def comparisons(terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name; the large restart only in the long run."""
    found: dict[str, Comparison] = {"disk": _bootstrap, "restart": _restart, "restart-memory": _restart_in_memory}
    return found | ({"restart-large": _restart_large} if terms.disk_entries > terms.entries else {})


def _bootstrap(stage: Stage) -> Measured:
    entries = stage.terms.entries
    topic = stage.topic(entries)
    with stage.folder() as folder:
        fresh = Folders(folder)
        commands = {
            "ours": python("store_load", stage.kafka, topic, "apply", "--disk", fresh["ours"]),
            "table": global_table(stage.kafka, topic, "rocksdb", fresh["table"], entries=entries),
            "default": global_table(
                stage.kafka, topic, "rocksdb", fresh["default"], entries=entries, threads=0, consumer="default"
            ),
            "raw": global_table(stage.kafka, topic, "rocksdb", fresh["raw"], entries=entries, values="raw"),
        }
        taken = stage.alternate(commands, before=fresh.empty)
    return Measured(list(_rows(taken, entries)), taken.rounds)


def _rows(taken: Figures, entries: int) -> Iterator[Row]:
    what = f"bootstrap of {count(entries)} records into RocksDB"
    for peer in (("default", f"{PEER[1]}, defaults"), ("table", f"{PEER[1]}, large polls")):
        yield beside(taken, what, "ours", peer, loading, wanted=Wanted(AT_LEAST, 1.2))
    what = f"launch of the process to ready, {count(entries)} records into RocksDB"
    peer = ("default", f"{PEER[1]}, defaults")
    yield beside(taken, what, "ours", peer, launch, figure="launch_seconds", wanted=Wanted(AT_LEAST, 1.2))
    what, wanted = f"view.get on RocksDB, {count(entries)} entries", Wanted(AT_LEAST, 1.3)
    yield beside(taken, f"{what}, decoded", "ours", PEER, reading, figure="rate", wanted=wanted)
    raw = ("raw", f"{PEER[1]}, bytes")
    what = f"view.raw on RocksDB, {count(entries)} entries"
    yield beside(undecoded(taken, "ours"), what, "ours", raw, reading, figure="rate")


def _restart(stage: Stage) -> Measured:
    """A cold start into an empty folder, then starts with all entries there and some new records in the topic."""
    entries = stage.terms.disk_entries
    topic = stage.topic(entries, purpose="restart")
    with stage.folder() as folder:
        kept = Folders(folder)
        commands = {
            "ours": python("store_load", stage.kafka, topic, "apply", "--threads", 0, "--disk", kept["ours"]),
            "table": global_table(stage.kafka, topic, "rocksdb", kept["table"], entries=entries, threads=0),
        }
        cold = stage.alternate(commands, rounds=1, warm=False)
        runnable = {name: command for name, command in commands.items() if name not in cold.absent}
        first = next(iter(runnable))  # a round's new records are the same for all of it

        def before(name: str) -> None:
            if name == first:
                append(stage.kafka, topic, NEW)

        warm = stage.alternate(runnable, before=before)
    taken = Figures(
        {
            f"{name} {kind}": rounds
            for kind, each in (("cold", cold), ("restart", warm))
            for name, rounds in each.rounds.items()
        },
        {f"{name} {kind}": why for name, why in cold.absent.items() for kind in ("cold", "restart")},
    )
    return Measured(list(_restart_rows(taken, entries)), taken.rounds)


def _restart_in_memory(stage: Stage) -> Measured:
    """Starts with all entries in a file and some new records in the topic; the peer keeps nothing in memory."""
    entries = stage.terms.entries
    topic = stage.topic(entries, purpose="saved")
    with stage.folder() as folder:
        ours = python("store_load", stage.kafka, topic, "apply", "--saved", folder / "ours")
        stage.alternate({"ours": ours}, rounds=1, warm=False)
        commands = {
            "ours": ours,
            "unsaved": python("store_load", stage.kafka, topic, "apply"),
            "table": global_table(stage.kafka, topic, "memory", folder / "table", entries=entries),
        }

        def before(name: str) -> None:
            if name == "ours":
                append(stage.kafka, topic, NEW)

        taken = stage.alternate(commands, before=before)
    what = f"restart with {count(entries)} entries in memory and {NEW:,} new records"
    in_memory = ("table", f"{GLOBAL_TABLE} in memory, which reads all")
    rows = [beside(taken, what, "ours", in_memory, _started, wanted=Wanted(AT_LEAST, 5))]
    seconds, limit = taken.median("ours", "seconds"), Wanted(AT_MOST, 0.3, "s")
    rows.append(Row(what=what, figure=f"{seconds:.2f} s", wanted=str(limit), met=limit.met(seconds)))
    unsaved = ("unsaved", "after a start without a file")
    rows.append(beside(taken, "view.get after that, decoded", "ours", unsaved, reading, figure="rate"))
    return Measured(rows, taken.rounds)


def _restart_large(stage: Stage) -> Measured:
    """Starts with more entries than fit the other comparisons, in memory from a file and on disk."""
    entries = stage.terms.disk_entries
    topic = stage.topic(entries, purpose="saved")
    with stage.folder() as folder:
        saved, disk = folder / "saved", folder / "disk"
        commands = {
            "ours": python("store_load", stage.kafka, topic, "apply", "--saved", saved),
            "disk": python("store_load", stage.kafka, topic, "apply", "--disk", disk),
            "unsaved": python("store_load", stage.kafka, topic, "apply"),
        }
        long_enough = python(
            "store_load", stage.kafka, topic, "apply", "--saved", saved, "--threads", 1, "--seconds", 60
        )
        stage.alternate({"saved": long_enough, "disk": commands["disk"]}, rounds=1, warm=False)

        def before(_name: str) -> None:
            append(stage.kafka, topic, NEW)

        taken = stage.alternate(commands, before=before, warm=False)
    what = f"restart with {count(entries)} entries in memory and {NEW:,} new records"
    rows = list(plain(taken, what, "ours", _started, figure="seconds", wanted=Wanted(AT_MOST, 5, "s")))
    rows.append(beside(taken, what, "ours", ("disk", "RocksDB, kept on disk"), _started))
    unsaved = ("unsaved", "after a start without a file")
    rows.append(beside(taken, "view.get after that, decoded", "ours", unsaved, reading, figure="rate"))
    return Measured(rows, taken.rounds)


def _started(taken: Figures, name: str) -> str:
    return f"{taken.median(name, 'seconds'):.2f} s"


def _restart_rows(taken: Figures, entries: int) -> Iterator[Row]:
    what = f"restart with {count(entries)} entries on disk and {NEW:,} new records"
    wanted = Wanted(AT_MOST, 0.5, "s")
    for name, called in (("ours", what), ("table", f"{GLOBAL_TABLE}: {what}")):
        lacking = taken.lacking(f"{name} restart")
        if lacking is not None:
            yield Row(what=called, figure=f"not measured: {lacking}")
            continue
        cold, seconds = taken.median(f"{name} cold", "seconds"), taken.median(f"{name} restart", "seconds")
        yield Row(
            what=called,
            figure=f"{seconds:.2f} s",
            beside=f"cold bootstrap {cold:.2f} s",
            ratio=cold / seconds,
            wanted=str(wanted) if name == "ours" else "",
            met=wanted.met(seconds) if name == "ours" else None,
        )


def undecoded(taken: Figures, name: str) -> Figures:
    """Return the figures with a program's reads being those of bytes."""
    if name in taken.absent:
        return taken
    raw = [each | {"rate": each["raw_rate"]} for each in taken.rounds[name]]
    return Figures({**taken.rounds, name: raw}, taken.absent)


def reading(taken: Figures, name: str) -> str:
    """Describe how a program read."""
    return f"{taken.median(name, 'rate') / 1e6:.2f} M/s"


class Folders:
    """A folder for each program below one; `empty` takes a program's own away before it is run."""

    def __init__(self, above: Path) -> None:
        self._above = above

    def __getitem__(self, name: str) -> Path:
        return self._above / name

    def empty(self, name: str) -> None:
        """Remove what a program left."""
        shutil.rmtree(self[name], ignore_errors=True)
