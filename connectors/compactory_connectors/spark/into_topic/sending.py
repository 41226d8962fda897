"""The records of a load on their way into the topic, in one transaction, or in several where one can't bear them.

A broker ends a transaction after 15 minutes, unless it is told otherwise. A larger load is cut into transactions. Each
is whole, and no key is in two of them. A load that ends between two of them is run again: it finds what is written
already, and sends the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from compactory.errors import CompactoryError, LeaseLost
from compactory.kafka.client import Kafka
from compactory.records import Partition
from compactory_connectors.kafka.producer_record import Copy, ProducerRecord
from compactory_connectors.kafka.publisher import Publisher, TransactionTimedOut

from ..target import Change
from ..topic.extent import Extent, TopicChanged, by_number, capture
from ..topic.frame import records
from .topic_changes import Outgoing, Tally, unpacked
from .topic_claim import TopicClaim

__all__ = ["Found", "Sending"]

_PACE: Final = 20_000
"""Records a second at which a transaction of the broker's is measured, and never less than so many seconds:"""
_LEAST: Final = 30.0
_MOST: Final = 900.0
"""Seconds: brokers take no longer transaction unless told (``transaction.max.timeout.ms``)."""
_TOGETHER: Final = int(_MOST * _PACE)
"""Records of one transaction."""
_WAIT: Final = 30.0
"""Seconds to wait for open transactions of others."""
_TAIL: Final = 1_000_000
"""Offsets that others may have written while the load was compared; above it is compared anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of a comparison: packed records, and the topic that they were compared with."""

    changes: DataFrame
    extent: Extent
    tally: Tally

    @property
    def outgoing(self) -> int:
        """The number of records to be sent."""
        return sum(count for change, count in self.tally.changes().items() if change is not Change.UNCHANGED)

    @property
    def transactions(self) -> int:
        """The number of transactions that they take."""
        return -(-self.outgoing // _TOGETHER)


class Sending:
    """Sends what a comparison found. Used once, by one thread."""

    def __init__(self, spark: SparkSession, kafka: Kafka, claim: TopicClaim, found: Found) -> None:
        self._spark = spark
        self._kafka = kafka
        self._claim = claim
        self._found = found
        self._topic = found.extent.topic
        self._sent = 0  # records of transactions that are committed
        self._moved: set[bytes] = set()  # keys that others have written since the comparison
        self._ends: dict[int, int] = {}  # of the topic; whatever comes then is this transaction's, or somebody else's

    def run(self, properties: Mapping[str, Any]) -> None:
        """Send all of it. ``properties`` are the producer's.

        Raises LeaseLost where somebody took over, TopicChanged where somebody wrote a key of the load since it was
        compared, ConfigError, Unreachable, CompactoryError. All of them say how much is written.
        """
        longest = max(_LEAST, min(_MOST, self._found.outgoing / _PACE))
        # a queue of 256 MiB takes a slow broker longer than a source's records may wait
        publisher = self._claim.take(longest, {"message.timeout.ms": int(longest * 800), **properties})
        outgoing = self._outgoing()
        self._look_at_tail()
        try:
            while self._sent < self._found.outgoing:
                self._transact(publisher, outgoing)
        except TransactionTimedOut as error:
            raise CompactoryError(
                f"topic {self._topic}: {self._size:,} records were not sent within {longest:g} s, so Kafka has ended"
                f" their transaction, and {self._written}; run the load again"
            ) from error
        except LeaseLost as error:
            raise LeaseLost(
                f"topic {self._topic}: another load, or a source, took over while this load was sent; {self._written}"
            ) from error
        finally:
            publisher.abort()

    def _transact(self, publisher: Publisher, outgoing: Iterator[Outgoing]) -> None:
        ends, strays = dict(self._ends), list[Copy]()
        publisher.publish(self._topic, self._records(outgoing, strays, publisher.flush), None, strays)
        self._sent += self._size
        for copy in strays:
            self._ends[copy.partition] += 1
        for number, end in self._ends.items():
            self._ends[number] += end > ends[number]  # the mark of the commit

    def _records(
        self, outgoing: Iterator[Outgoing], strays: list[Copy], flush: Callable[[], None]
    ) -> Iterator[ProducerRecord]:
        """The records of a transaction; what is wrong by then ends it. Notes where the topic ends with them."""
        now, sent = int(time.time() * 1000) - 1, 0
        config = self._kafka.topic_configs([self._topic]).get(self._topic, {})
        stamped = config.get("message.timestamp.type") == "LogAppendTime"
        for record in outgoing if self._last else islice(outgoing, self._size):
            if record.key in self._moved:
                raise self._changed("compared")
            strays += [Copy(record.key, part, min(stamp, now)) for part, stamp in record.strays or ()]
            if strays and stamped:
                raise CompactoryError(
                    f"topic {self._topic}: keys live in several partitions; with message.timestamp.type=LogAppendTime a"
                    " tombstone would be the newest of its key: make the topic anew"
                )
            yield self._record(record)
            sent += 1
        if sent != self._size:  # Spark has made what it had lost anew, of a source that changed
            raise CompactoryError(
                f"topic {self._topic}: {self._found.outgoing:,} records differed when they were compared, and"
                f" {self._sent + sent:,} now; {self._written}; run it again"
            )
        self._claim.refuse_stored()
        flush()
        ends = by_number(self._kafka.high_watermarks(Partition(self._topic, number) for number in self._ends))
        if self._written_beside(ends):
            raise self._changed("sent")
        self._ends = ends

    def _written_beside(self, ends: Mapping[int, int]) -> bool:
        """Whether others wrote keys of the load while it was sent. It is in the log itself by now, each key once.

        Between transactions every record of others counts: it may be of a key that is sent later.
        """
        tail = replace(self._found.extent, starts=self._ends, ends=ends)
        if tail.offsets == self._size:
            return False
        if not self._last:
            return True
        written = records(self._spark, self._kafka, tail, committed=False)
        several = {bytes(row[0]) for row in written.groupBy("key").count().where("count > 1").select("key").collect()}
        return bool(several) and any(record.key in several for record in self._outgoing())

    @property
    def _size(self) -> int:
        """The number of records of the transaction that is sent."""
        return min(_TOGETHER, self._found.outgoing - self._sent)

    @property
    def _last(self) -> bool:
        return self._sent + self._size == self._found.outgoing

    @property
    def _written(self) -> str:
        return (
            f"{self._sent:,} of {self._found.outgoing:,} records were written" if self._sent else "nothing was written"
        )

    def _outgoing(self) -> Iterator[Outgoing]:
        packs = self._found.changes.where("records IS NOT NULL").select("records")
        for row in packs.toLocalIterator(prefetchPartitions=True):
            yield from unpacked(bytes(row[0]))

    def _record(self, record: Outgoing) -> ProducerRecord:
        if record.headers is None:
            return record.key, record.value
        return record.key, record.value, self._topic, list(record.headers)

    def _changed(self, when: str) -> TopicChanged:
        return TopicChanged(
            f"topic {self._topic}: somebody wrote keys of this load while it was {when}; {self._written}; run it again"
        )

    def _look_at_tail(self) -> None:
        """Find what others wrote since the comparison. Raises TopicChanged where it is another topic now."""
        was = self._found.extent
        now = capture(self._kafka, self._topic, wait=_WAIT)
        if now.topic_id != was.topic_id or now.ends.keys() != was.ends.keys():
            raise TopicChanged(f"topic {self._topic} is another one since it was compared: run the load again")
        tail = replace(now, starts=was.ends)
        if tail.offsets > _TAIL:
            raise TopicChanged(
                f"topic {self._topic}: {tail.offsets:,} records came while the load was compared: run it again"
            )
        if tail.offsets:
            keys = records(self._spark, self._kafka, tail).select("key").distinct().collect()
            self._moved = {bytes(row[0]) for row in keys}
        self._ends = dict(now.ends)
