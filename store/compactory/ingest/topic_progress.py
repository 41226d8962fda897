"""The progress of one topic: its phase, its positions, and the times at which it was at its end. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from compactory.ingest.rebuild_rules import Mark, missed_tombstones
from compactory.records import Partition, Rebuild

__all__ = ["MOVES", "Phase", "TopicProgress"]


class Phase(Enum):
    """The phases of a topic: which data answers its lookups. Legal moves are in `MOVES`."""

    LOADING = "loading"  # none: the topic is read towards the high watermarks
    KEPT = "kept"  # the data that the backend had, which is not caught up yet
    FOLLOWING = "following"  # the data that is read: it is complete
    REBUILDING = "rebuilding"  # the former generation, while the topic is read anew


MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.LOADING: frozenset({Phase.LOADING, Phase.KEPT, Phase.FOLLOWING}),
    Phase.KEPT: frozenset({Phase.KEPT, Phase.FOLLOWING, Phase.REBUILDING}),
    Phase.FOLLOWING: frozenset({Phase.LOADING, Phase.REBUILDING}),  # the former while the store itself is loading
    Phase.REBUILDING: frozenset({Phase.FOLLOWING, Phase.REBUILDING}),
}


@dataclass(slots=True)
class TopicProgress:
    """The data of `Progress` about one topic, changed under its lock. Times are in seconds by `clock`.

    The records that were read of a topic are a *generation*; a rebuild begins the next one. The marks show ages and
    missed tombstones. The start of the reading is a mark too: a reader of a value sees its tombstone if it reaches the
    end within ``delete.retention.ms`` of that time. The log cleaner keeps a tombstone for that long *after* it has
    removed the value (Kafka: "Log Compaction Details").
    """

    began: float  # when the reading of this generation began
    phase: Phase = Phase.LOADING
    generation: int = 0
    rebuild: Rebuild | None = None  # why this generation is read, if it is not the first
    demand: Rebuild | None = None  # a rebuild that the reader has not begun yet
    topic_id: str | None = None  # the topic's id when its reading began
    is_absent: bool = False  # True if the cluster does not know the topic any more
    held_since: float | None = None  # since when it is complete and not served: a directory is unusable
    positions: dict[Partition, int] = field(default_factory=dict)  # empty until the partitions are known
    starts: dict[Partition, int] = field(default_factory=dict)  # where the reading of this generation began
    targets: dict[Partition, int] = field(default_factory=dict)  # high watermarks when partitions were first seen
    ends: dict[Partition, int] = field(default_factory=dict)  # high watermarks as last asked
    served_marks: dict[Partition, Mark] = field(default_factory=dict)  # of partitions of the data that is served
    start_marks: dict[Partition, Mark] = field(default_factory=dict)  # of the generation that is read
    resumed: set[Partition] = field(default_factory=set)  # their marks are the checkpoint's until it is caught up
    reason: str = ""  # why the served data is old, in the phases KEPT and REBUILDING

    @property
    def is_hidden(self) -> bool:
        """Return True if positions say nothing about the served data. A demanded rebuild may not have begun yet."""
        return self.phase is Phase.REBUILDING or self.demand is not None

    @property
    def stale_reason(self) -> str | None:
        """Return why the served data is old; None if it is current, or if nothing is served."""
        if self.phase is Phase.LOADING:
            return None
        if self.demand is not None:
            return self.demand.detail
        if self.is_absent:
            return "the topic does not exist any more"
        return None if self.phase is Phase.FOLLOWING else self.reason

    @property
    def is_complete(self) -> bool:
        """Return True if the partitions are known, and each is applied up to its target."""
        has_reached = all(self.positions[partition] >= target for partition, target in self.targets.items())
        return bool(self.positions) and self.demand is None and has_reached

    def missed_tombstones(self, at: float, retention: float) -> Rebuild | None:
        """Return the rebuild that is needed at the time ``at`` if the topic was resumed and may have missed deletions.

        Tombstones are kept for ``retention`` seconds.
        """
        for partition in self.resumed & self.served_marks.keys():
            end = self.positions.get(partition, -1)
            rebuild = missed_tombstones(partition, self.served_marks[partition], end, at, retention)
            if rebuild is not None:
                return rebuild
        return None

    def mark_caught_up(self, asked_at: float) -> None:
        """Mark the partitions that are applied to their end as it was at the time ``asked_at``."""
        if self.is_hidden:
            return
        for partition, end in self.ends.items():
            if partition not in self.resumed and self.positions.get(partition, -1) >= end:
                self.served_marks[partition] = Mark(asked_at, end)

    @property
    def reading_marks(self) -> dict[Partition, Mark]:
        """Return the marks of the generation that is read."""
        return self.start_marks if self.phase is Phase.REBUILDING else self.start_marks | self.served_marks

    def enter(self, phase: Phase, reason: str = "") -> None:
        """Move to a phase. ``reason`` says why the served data is old from now on."""
        assert phase in MOVES[self.phase], f"from {self.phase} to {phase}"
        self.phase, self.reason = phase, reason
