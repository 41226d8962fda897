"""How far topics are known to have come: a topic that ends before that is an older copy, which somebody put back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from compactory.kafka.client import Kafka
from compactory.records import Topic

__all__ = ["TopicEnds"]


class TopicEnds:
    """Of each topic the least sum of its partitions' end offsets. Owned by the session's thread.

    Ends only grow: by other writers, markers of transactions and aborted records as well. Compaction leaves them.
    """

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self.passed: defaultdict[str, int] = defaultdict(int)
        """By topic; add the records that were published to it."""

    def look(self, topics: Mapping[str, Topic]) -> list[str]:
        """Ask where these topics end now; those that end before what is known of them. Raises Unreachable."""
        partitions = [part for topic in topics.values() for part in topic.all()]
        found = dict.fromkeys(topics, 0)
        for part, end in (self._kafka.high_watermarks(partitions) if partitions else {}).items():
            found[part.topic] += end
        behind = [name for name, end in found.items() if end < self.passed[name]]
        self.passed |= found
        return behind
