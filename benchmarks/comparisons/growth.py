"""How time to ready, memory and reads grow with the number of entries; what the plots of the report show."""

from __future__ import annotations

from functools import partial

from benchmarks.comparisons.bootstrap import count
from benchmarks.comparisons.disk import Folders
from benchmarks.peers import GLOBAL_TABLE, KTABLES, global_table, ktables
from benchmarks.rows import Figures, plain
from benchmarks.stage import Comparison, Measured, Stage, Terms, python

SIDES = {
    "ours": "Compactory",
    "disk": "Compactory on RocksDB",
    "table": GLOBAL_TABLE,
    "table-disk": f"{GLOBAL_TABLE} on RocksDB",
    "ktables": f"{KTABLES}, raw",
}
WARM_UP_TO = 10_000  # entries: where a first run would show more of the page cache than of the programs
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
            "ours": python("store_load", stage.kafka, topic, "apply"),
            "disk": python("store_load", stage.kafka, topic, "apply", "--disk", fresh["disk"]),
            "table": table("memory", fresh["table"]),
            "table-disk": table("rocksdb", fresh["table-disk"]),
            "ktables": ktables(stage.kafka, topic, "raw", "reads"),
        }
        taken = stage.alternate(commands, rounds=ROUNDS, warm=entries <= WARM_UP_TO, before=fresh.empty)
    of = f"{count(entries)} entries"
    rows = [row for name, called in SIDES.items() for row in plain(taken, f"{of}, {called}", name, _described)]
    return Measured(rows, taken.rounds)


def _described(taken: Figures, name: str) -> str:
    seconds, rate = taken.median(name, "seconds"), taken.median(name, "rate")
    heap = name == "table"
    memory = f"{taken.median(name, 'heap_mb' if heap else 'rss_mb'):.0f} MB{' of live heap' * heap}"
    return f"ready in {seconds:.2f} s, {memory}, {rate / 1e6:.2f} M gets/s"
