"""How time to ready, memory and reads grow with the number of entries; what the plots of the report show."""

from __future__ import annotations

from functools import partial

from benchmarks.bootstrap import count
from benchmarks.disk import Folders
from benchmarks.peers import GLOBAL_TABLE, KTABLES, global_table, ktables
from benchmarks.rows import Figures, Row, plain
from benchmarks.stage import Comparison, Measured, Stage, Terms, python

SIDES = {
    "ours": "Compactory",
    "disk": "Compactory on RocksDB",
    "table": GLOBAL_TABLE,
    "table-disk": f"{GLOBAL_TABLE} on RocksDB",
    "ktables": f"{KTABLES}, raw",
}
ROUNDS = 1  # a round at each size: it is the slope that is looked at


def comparisons(terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {f"growth-{entries}": partial(_growth, entries) for entries in terms.growth}


def _growth(entries: int, stage: Stage) -> Measured:
    topic = stage.topic(entries)
    table = partial(global_table, stage.kafka, topic, entries=entries)
    with stage.folder() as folder:
        fresh = Folders(folder)
        commands = {
            "ours": python("_store_load", stage.kafka, topic, "apply"),
            "disk": python("_store_load", stage.kafka, topic, "apply", "--disk", fresh["disk"]),
            "table": table("memory", fresh["table"]),
            "table-disk": table("rocksdb", fresh["table-disk"]),
            "ktables": ktables(stage.kafka, topic),
        }
        taken = stage.alternate(commands, rounds=ROUNDS, warm=entries < 1_000_000, before=fresh.empty)
    rows = [row for name, called in SIDES.items() for row in _row(taken, name, f"{count(entries)} entries, {called}")]
    return Measured(rows, taken.rounds)


def _row(taken: Figures, name: str, what: str) -> list[Row]:
    return list(plain(taken, what, name, _described))


def _described(taken: Figures, name: str) -> str:
    seconds, memory, rate = (taken.median(name, figure) for figure in ("seconds", "rss_mb", "rate"))
    return f"ready in {seconds:.2f} s, {memory:.0f} MB, {rate / 1e6:.2f} M gets/s"
