"""1 M keys of three versions each exported to Parquet, beside Spark's Kafka connector and ``max_by`` per key."""

from __future__ import annotations

from functools import partial

from benchmarks.comparisons.bootstrap import count
from benchmarks.rows import AT_LEAST, Figures, Wanted, beside, plain
from benchmarks.stage import Command, Comparison, Measured, Stage, Terms, python
from benchmarks.topics import append
from compactory.kafka.client import Kafka

__all__ = ["comparisons"]

OURS, CONNECTOR = "Compactory", "Spark's connector, max_by"
_VERSIONS = 3


def comparisons(terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name; growth runs each size once."""
    growth = {f"spark-export-{size}": partial(_growth, size) for size in terms.growth}
    both = {f"spark-export-{partitions}p": partial(_export, partitions) for partitions in (4, 1)}
    return both | growth


def _export(partitions: int, stage: Stage) -> Measured:
    keys = stage.terms.entries
    taken = stage.alternate(_commands(stage, keys, partitions), warm=False)
    what = f"export of {count(keys)} keys, {_VERSIONS} versions each, partitions: {partitions}"
    peer = (CONNECTOR, CONNECTOR)
    found = [
        beside(taken, what, OURS, peer, _described, wanted=Wanted(AT_LEAST, 1.3)),
        beside(taken, f"{what}, warm", OURS, peer, _again, figure="again_seconds"),
    ]
    return Measured(found, taken.rounds)


def _growth(keys: int, stage: Stage) -> Measured:
    taken = stage.alternate(_commands(stage, keys, 4), rounds=1, warm=False)
    what = f"export of {count(keys)} keys, {_VERSIONS} versions each"
    found = [row for name in (OURS, CONNECTOR) for row in plain(taken, f"{what}, {name}", name, _described)]
    return Measured(found, taken.rounds)


def _commands(stage: Stage, keys: int, partitions: int) -> dict[str, Command]:
    topic = _filled(stage.kafka, keys, partitions)
    return {
        OURS: python("spark.export", stage.kafka, topic, "ours"),
        CONNECTOR: python("spark.export", stage.kafka, topic, "connector"),
    }


def _filled(address: str, keys: int, partitions: int) -> str:
    """Return a topic with so many keys of three versions each, filled on first use."""
    topic = f"bench-versions-{keys}-{partitions}"
    config = {"cleanup.policy": "compact", "segment.bytes": str(1 << 30)}
    if Kafka(address).create_topic(topic, partitions=partitions, config=config):
        for _ in range(_VERSIONS):
            append(address, topic, keys)
    return topic


def _described(taken: Figures, name: str) -> str:
    seconds, keys = taken.median(name, "seconds"), taken.median(name, "keys")
    return f"{seconds:.1f} s, {keys / seconds / 1000:.0f} k keys/s"


def _again(taken: Figures, name: str) -> str:
    return f"{taken.median(name, 'again_seconds'):.1f} s"
