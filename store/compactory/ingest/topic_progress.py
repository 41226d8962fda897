"""How far the reading of one topic is: its phase, its positions, and when it was last known to be at its end. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from compactory.ingest.resumption import gap_of
from compactory.records import Partition, Rebuild

__all__ = ["Mark", "Phase", "TopicProgress"]

Mark = tuple[float, int]  # when (by the clock of the process), and where the end was then

_KEPT = "it is served as it was kept, and not caught up yet"


class Phase(Enum):
    """The phases of a topic: from what its lookups are answered. Legal moves are in `MOVES`."""

    LOADING = "loading"  # nothing: it is read towards the high watermarks
    KEPT = "kept"  # what was kept on disk, which is not caught up yet
    FOLLOWING = "following"  # what is read: it is complete
    REBUILDING = "rebuilding"  # the former generation, while the topic is read anew


MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.LOADING: frozenset({Phase.LOADING, Phase.KEPT, Phase.FOLLOWING}),
    Phase.KEPT: frozenset({Phase.KEPT, Phase.FOLLOWING, Phase.REBUILDING}),
    Phase.FOLLOWING: frozenset({Phase.LOADING, Phase.REBUILDING}),  # the former while the store itself is loading
    Phase.REBUILDING: frozenset({Phase.FOLLOWING, Phase.REBUILDING}),
}


class TopicProgress:
    """The progress of one topic. Guarded by `Progress`' lock.

    The records that were read of a topic are a *generation*; a rebuild begins the next one. The marks show ages and
    missed tombstones. The moment at which reading began is a mark too: a reader of a value sees its tombstone if it
    reaches the end within ``delete.retention.ms`` of that moment. The log cleaner keeps a tombstone for that long
    *after* it has removed the value (Kafka: "Log Compaction Details").
    """

    def __init__(self, began: float) -> None:
        self.phase = Phase.LOADING
        self.generation = 0
        self.began = began  # when the reading of this generation began
        self.rebuild: Rebuild | None = None  # why this generation is read, if it is not the first
        self.demand: Rebuild | None = None  # a rebuild that the reader has not begun yet
        self.identity: str | None = None  # of the topic, as its reading began
        self.absent = False  # whether the cluster does not know it any more
        self.held_since: float | None = None  # since when it is complete and not served: a directory is unusable
        self.positions: dict[Partition, int] = {}  # next offset to read; empty until the partitions are known
        self.starts: dict[Partition, int] = {}  # where this generation's reading began
        self.targets: dict[Partition, int] = {}  # high watermark captured when the partition was first seen
        self.ends: dict[Partition, int] = {}  # high watermarks as last asked
        self._why = ""  # what is served is old
        self._marks: dict[Partition, Mark] = {}  # of partitions of what is served that were at their end
        self._begun: dict[Partition, Mark] = {}  # of the generation that is read
        self._resumed: set[Partition] = set()  # whose mark is a checkpoint's until the topic is caught up

    @property
    def hidden(self) -> bool:
        """Whether positions say nothing about the served data. A demanded rebuild may not have begun yet."""
        return self.phase is Phase.REBUILDING or self.demand is not None

    @property
    def stale(self) -> str | None:
        """Why what is served is old; None where it is not, or nothing is served."""
        if self.phase is Phase.LOADING:
            return None
        if self.demand is not None:
            return self.demand.detail
        if self.absent:
            return "the topic does not exist any more"
        return None if self.phase is Phase.FOLLOWING else self._why

    @property
    def complete(self) -> bool:
        """Whether the partitions are known, and each is applied up to its target."""
        reached = all(self.positions[partition] >= target for partition, target in self.targets.items())
        return bool(self.positions) and self.demand is None and reached

    def keep(self) -> None:
        """Serve the state of a checkpoint before Kafka is asked."""
        self._move(Phase.KEPT, _KEPT)

    def restart(self, now: float, *, store_loads: bool) -> Rebuild:
        """Begin a new, empty generation as demanded; the former one goes on being served, unless the store loads."""
        assert self.demand is not None
        served = self.phase in (Phase.KEPT, Phase.REBUILDING) or (self.phase is Phase.FOLLOWING and not store_loads)
        self.rebuild, self.demand = self.demand, None
        self._move(Phase.REBUILDING if served else Phase.LOADING, self.rebuild.detail)
        self.generation += 1
        self.began = now
        self.identity, self.held_since = None, None
        for by_partition in (self.positions, self.starts, self.targets, self.ends, self._begun):
            by_partition.clear()
        self._resumed.clear()
        if not served:
            self._marks.clear()
        return self.rebuild

    def begin(self, partition: Partition, start: int, target: int, now: float) -> None:
        """Take up a partition that was not known before."""
        self.positions[partition] = self.starts[partition] = start
        self.targets[partition] = target
        self._begun[partition] = (now, start)

    def resume(self, marks: Mapping[Partition, Mark]) -> None:
        """Continue the topic from a checkpoint. The checkpoint's marks count until `finish`.

        The time from those marks until all partitions are caught up shows whether deletions were missed. A mark in
        between would hide the downtime before it.
        """
        self._marks |= marks
        self._resumed |= marks.keys()

    def hold(self, now: float, why: str) -> None:
        """Note that it is read to its end, and can't be served."""
        self.held_since = now if self.held_since is None else self.held_since
        self._why = why

    def finish(self, now: float) -> None:
        """Note that it is read to its end, and served from now on."""
        self._move(Phase.FOLLOWING, "")
        self.held_since = None
        self._resumed.clear()
        self._marks = {partition: (now, end) for partition, end in self.targets.items()}

    def note_caught_up(self, asked_at: float) -> None:
        """Mark the partitions that are applied to their end as it was at ``asked_at``."""
        if not self.hidden:
            for partition, end in self.ends.items():
                if partition not in self._resumed and self.positions.get(partition, -1) >= end:
                    self._marks[partition] = (asked_at, end)

    def marks(self, *, begun: bool) -> dict[Partition, Mark]:
        """Return the marks of what is served; with ``begun`` those of where reading began, where there is no other."""
        return self._begun | self._marks if begun and self.phase is not Phase.REBUILDING else dict(self._marks)

    def read_marks(self) -> dict[Partition, Mark]:
        """Return the marks of the generation that is read."""
        return self._begun if self.phase is Phase.REBUILDING else self._begun | self._marks

    def gap(self, retention: float, now: float) -> Rebuild | None:
        """Return why deletions may have been missed from the checkpoint that it was resumed from until now."""
        for partition in self._resumed & self._marks.keys():
            gap = gap_of(partition, self._marks[partition], self.positions.get(partition, -1), now, retention)
            if gap is not None:
                return gap
        return None

    def age(self, marks: Collection[Mark], now: float) -> float:
        """Return the seconds since all partitions were last known to be applied; infinite before that."""
        unknown = self.phase in (Phase.LOADING, Phase.FOLLOWING) and not self.positions
        return float("inf") if unknown or not marks else max(0.0, now - min(at for at, _ in marks))

    def _move(self, phase: Phase, why: str) -> None:
        assert phase in MOVES[self.phase], f"from {self.phase} to {phase}"
        self.phase, self._why = phase, why
