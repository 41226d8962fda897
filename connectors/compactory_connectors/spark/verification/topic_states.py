"""One topic as sides of it are compared with it: its newest records at any offsets, and what came after them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, Self

from pyspark.sql import DataFrame, SparkSession

from compactory.kafka.client import Kafka

from ..topic.extent import Extent, capture
from ..topic.frame import latest, records

__all__ = ["TopicStates"]

_KEPT: Final = 3  # frames: stores that are at the same positions share one


class TopicStates:
    """Owned by one thread; a context manager, as frames are kept once they were computed.

    Raises what :func:`capture` raises, from the constructor too.
    """

    def __init__(self, spark: SparkSession, kafka: Kafka, topic: str) -> None:
        self.spark = spark
        self.topic = topic
        self._kafka = kafka
        self._kept: dict[tuple[tuple[int, int], ...], DataFrame] = {}
        self.extent = capture(kafka, topic)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for frame in self._kept.values():
            frame.unpersist()

    def look(self) -> Extent:
        """Look at the topic's ends once more: everything that anybody has read of it lies before them."""
        self.extent.check(self._kafka)
        self.extent = capture(self._kafka, self.topic)
        return self.extent

    def at(self, positions: Mapping[int, int]) -> DataFrame:
        """The newest record of each key before these offsets, tombstones included; a partition not named is empty.

        Of a key that has newer ones compaction may have taken what it had then.
        """
        ends = {number: min(end, positions.get(number, 0)) for number, end in self.extent.ends.items()}
        place = tuple(sorted(ends.items()))
        if place not in self._kept:
            if len(self._kept) == _KEPT:
                self._kept.pop(next(iter(self._kept))).unpersist()
            within = replace(self.extent, ends=ends)
            self._kept[place] = latest(self.spark, self._kafka, within, tombstones=True).persist()
        return self._kept[place]

    def values(self, positions: Mapping[int, int], keys: Collection[bytes]) -> dict[bytes, bytes | None]:
        """The values of some keys there."""
        found = self.at(positions).join(self._frame(keys), "key").select("key", "value").collect()
        return {bytes(key): None if value is None else bytes(value) for key, value in found}

    def touched(self, positions: Mapping[int, int], keys: Collection[bytes]) -> set[bytes]:
        """Which of these keys have a record at or behind these offsets, up to the end of now."""
        extent = self.look()
        starts = {number: max(start, positions.get(number, start)) for number, start in extent.starts.items()}
        if not keys or all(starts[number] >= end for number, end in extent.ends.items()):
            return set()
        rest = records(self.spark, self._kafka, replace(extent, starts=starts))
        return {bytes(row[0]) for row in rest.select("key").join(self._frame(keys), "key").distinct().collect()}

    def _frame(self, keys: Collection[bytes]) -> DataFrame:
        return self.spark.createDataFrame([(bytearray(key),) for key in keys], "key binary")
