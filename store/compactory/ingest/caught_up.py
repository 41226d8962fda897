"""When each partition was last known to be applied to its end: what age and missed tombstones are told by. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from compactory.records import Partition

__all__ = ["Mark", "Marks"]

Mark = tuple[float, int]  # when (by the clock of the process), and where the end was then


class Marks:
    """Marks of one store's partitions. Belongs to whoever holds `Progress`' lock.

    Where reading began counts as a mark too: whoever reads a value sees its tombstone if he is at the end within
    ``delete.retention.ms`` of the moment at which he began, as the log cleaner keeps a tombstone for that long *after*
    it has removed the value (Kafka: "Log Compaction Details").
    """

    def __init__(self) -> None:
        self._served: dict[Partition, Mark] = {}
        self._begun: dict[Partition, Mark] = {}  # of the generation that is read
        self._resumed: set[Partition] = set()  # whose mark is a checkpoint's until the topic is caught up

    def begin(self, partition: Partition, at: float, start: int) -> None:
        """The reading of a partition begins."""
        self._begun[partition] = (at, start)

    def note(self, partition: Partition, mark: Mark) -> None:
        """A partition of what is served was applied to its end."""
        if partition not in self._resumed:
            self._served[partition] = mark

    def resume(self, partition: Partition, mark: Mark) -> None:
        """A partition is gone on with from a checkpoint, whose mark counts until `finish_rebuild`.

        Whether deletions were missed is told by the time from that mark to the moment at which all is caught up: a
        mark in between would hide the downtime before it.
        """
        self._served[partition] = mark
        self._resumed.add(partition)

    def resumed(self, topic: str) -> dict[Partition, Mark]:
        """Return the marks of a topic that are a checkpoint's still."""
        return {part: self._served[part] for part in self._resumed if part.topic == topic and part in self._served}

    def restart(self, topic: str, *, served: bool) -> None:
        """A new generation of a topic begins; the former one counts on where it is served."""
        self._begun = _without(self._begun, topic)
        self._resumed = {part for part in self._resumed if part.topic != topic}
        if not served:
            self._served = _without(self._served, topic)

    def finish_rebuild(self, topic: str, ends: Mapping[Partition, int], now: float) -> None:
        """What is read of a topic is served from now on; it is applied to these ends."""
        self._resumed = {part for part in self._resumed if part.topic != topic}
        self._served = {**_without(self._served, topic), **{part: (now, end) for part, end in ends.items()}}

    def served(self, hidden: Collection[str]) -> dict[Partition, Mark]:
        """Return the marks of what is served; topics in ``hidden`` are read anew beside it."""
        begun = {part: mark for part, mark in self._begun.items() if part.topic not in hidden}
        return begun | self._served

    def at_ends(self) -> dict[Partition, Mark]:
        """Return the marks of partitions that were at their end at least once."""
        return dict(self._served)

    def read(self, topic: str, *, hidden: bool) -> dict[int, Mark]:
        """Return the marks of the generation of a topic that is read, for its checkpoint."""
        marks = self._begun if hidden else self._begun | self._served
        return {part.partition: mark for part, mark in marks.items() if part.topic == topic}


def _without(marks: Mapping[Partition, Mark], topic: str) -> dict[Partition, Mark]:
    return {part: mark for part, mark in marks.items() if part.topic != topic}
