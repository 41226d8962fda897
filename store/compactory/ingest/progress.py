"""The progress of a store, topic by topic, and the threads that wait for it to advance.

The reader thread advances positions after the change is visible. Progress, the reader's death and close wake waiters.
One condition guards everything; reads of single attributes need no lock.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from compactory.clock import clock
from compactory.errors import BackendCorrupt, StartTimeout
from compactory.ingest.rebuild_rules import Mark
from compactory.ingest.store_status import StoreStatus
from compactory.ingest.topic_progress import Phase, TopicProgress
from compactory.loading import Loading, missing_offsets, wait_timeout
from compactory.records import Partition, Rebuild, RebuildCause, StoreState
from compactory.storage.checkpoint import Checkpoint

__all__ = ["Progress"]

Offsets = dict[Partition, int]


class Progress(StoreStatus):
    """The state of one store and how far each topic is. Thread-safe.

    ``topics`` has the data of each topic. It is changed, and iterated over, under the lock. Single attributes may be
    read without it; the reader alone changes phases.

    The positions of a generation count for the reader at once, and for waiters when the topic is served from it.
    """

    def __init__(self, topics: Iterable[str] = ()) -> None:
        super().__init__()
        self.missing: frozenset[str] = frozenset()  # topics that are waited for until the cluster has them
        self.rebuilds: Counter[tuple[str, str]] = Counter()  # (topic, cause) -> count since the start
        self._began = clock()
        self.topics = {name: TopicProgress(self._began) for name in topics}
        self._ends_asked_at = 0.0

    def positions(self) -> Offsets:
        """Return the next offset to read of every partition: all records before it are visible."""
        with self._changed:
            return _joined(topic.positions for topic in self.topics.values() if not topic.is_hidden)

    def reading_positions(self) -> Offsets:
        """Return the next offset to read of every partition, those of generations that are not served included."""
        with self._changed:
            return _joined(topic.positions for topic in self.topics.values())

    def lag(self) -> Offsets:
        """Return how many offsets lie between the visible position and the last known end of each partition."""
        with self._changed:
            positions = self.positions()
            ends = _joined(topic.ends for topic in self.topics.values())
            return {part: max(0, end - positions.get(part, 0)) for part, end in ends.items()}

    def stale(self) -> dict[str, str]:
        """Return why the served data of a topic is old, by topic. Current topics are absent."""
        with self._changed:
            return {name: reason for name, topic in self.topics.items() if (reason := topic.stale_reason) is not None}

    def caught_up(self) -> dict[Partition, Mark]:
        """Return when each partition of the served data was last known to be applied to its end, and that end."""
        with self._changed:
            return {part: mark for topic in self.topics.values() for part, mark in self._served_marks(topic).items()}

    def age(self, topic: str) -> float:
        """Return the seconds since all partitions of a topic were last known to be applied to their end.

        Infinite before that.
        """
        with self._changed:
            progress = self.topics[topic]
            marks = self._served_marks(progress)
            is_unknown = progress.phase in (Phase.LOADING, Phase.FOLLOWING) and not progress.positions
            if is_unknown or not marks:
                return float("inf")
            return max(0.0, clock() - min(mark.at for mark in marks.values()))

    def blocking(self) -> list[dict[str, Any]]:
        """Return what is short of its target (missing topics first), as StartTimeout and ``/readyz`` list it."""
        with self._changed:
            missing: list[dict[str, Any]] = [
                {"topic": topic, "partition": None, "position": None, "target": None} for topic in sorted(self.missing)
            ]
            return missing + [
                {"topic": part.topic, "partition": part.partition, "position": topic.positions[part], "target": target}
                for topic in self.topics.values()
                for part, target in topic.targets.items()
                if topic.positions[part] < target
            ]

    def loading(self) -> Loading:
        """Return how far the reading towards the targets is: of the topics that are read anew, else of all."""
        with self._changed:
            rereading = [topic for topic in self.topics.values() if topic.phase in (Phase.KEPT, Phase.REBUILDING)]
            read = total = 0
            for topic in rereading or self.topics.values():
                for part, target in topic.targets.items():  # what was read after one target makes up for nothing else
                    read += max(0, min(topic.positions[part], target) - topic.starts[part])
                    total += max(0, target - topic.starts[part])
            return Loading(read=read, total=total, seconds=max(clock() - self._began, 0.0))

    def serve(self) -> bool:
        """Begin to serve: READY, or STALE if the data of a topic is known to be old."""
        with self._changed:
            has_moved = self._move(self._serving_state())
        if has_moved:
            self._notify()
        return has_moved

    def _serving_state(self) -> StoreState:
        return StoreState.STALE if self.stale() else StoreState.READY

    def generations(self) -> dict[str, int]:
        """Return the number of each topic's current generation."""
        with self._changed:
            return {name: topic.generation for name, topic in self.topics.items()}

    def demand(self, topic: str, rebuild: Rebuild) -> None:
        """Ask the reader to begin a new generation of a topic. The first demand counts until it is met."""
        with self._serving_change():
            progress = self.topics[topic]
            progress.demand = progress.demand or rebuild

    def note_damage(self, topic: str, damage: BackendCorrupt) -> None:
        """Demand a rebuild of a topic whose storage is damaged."""
        self.demand(topic, Rebuild(RebuildCause.CORRUPT, str(damage)))

    def demanded(self) -> list[str]:
        """Return the topics of which the reader has to begin a new generation."""
        return [name for name, topic in self.topics.items() if topic.demand is not None]

    def begin_rebuild(self, topic: str) -> Rebuild:
        """Begin a new, empty generation of a topic, as demanded. For the reader.

        The former generation is still served, unless the store itself is loading.
        """
        with self._serving_change():
            former = self.topics[topic]
            assert former.demand is not None
            rebuild = former.demand
            follows = former.phase is Phase.FOLLOWING and self.state is not StoreState.LOADING
            is_served = follows or former.phase in (Phase.KEPT, Phase.REBUILDING)
            former.enter(Phase.REBUILDING if is_served else Phase.LOADING, rebuild.detail)
            self._began = clock()
            self.topics[topic] = TopicProgress(
                began=self._began,
                phase=former.phase,
                reason=former.reason,
                generation=former.generation + 1,
                rebuild=rebuild,
                is_absent=former.is_absent,
                served_marks=former.served_marks if is_served else {},
            )
            self.rebuilds[topic, rebuild.cause.value] += 1
        return rebuild

    def add_partitions(
        self, starts: Mapping[Partition, int], targets: Mapping[Partition, int],
        generations: Mapping[str, int], topic_ids: Mapping[str, str | None],
    ) -> None:  # fmt: skip
        """Add the partitions that were not known before, to be read from ``starts`` to ``targets``.

        ``generations`` are from the time when these were asked for: nothing is added to a topic of another one.
        """
        with self._changed:
            for partition, start in starts.items():
                topic = self.topics[partition.topic]
                is_new = partition in targets and partition not in topic.positions
                if not is_new or topic.demand is not None or generations.get(partition.topic) != topic.generation:
                    continue
                if not topic.positions:
                    topic.topic_id = topic_ids.get(partition.topic)
                topic.positions[partition] = topic.starts[partition] = start
                topic.targets[partition] = targets[partition]
                topic.start_marks[partition] = Mark(clock(), start)
                if topic.generation == 0:  # reading anew over and over is no progress
                    self._advanced_at = clock()
            self._changed.notify_all()

    def resume(self, topic: str, checkpoint: Checkpoint, *, serve: bool = False) -> None:
        """Continue a topic from a checkpoint, whose marks count until `finish`. With ``serve`` its data is served now.

        The time from those marks until all partitions are caught up shows if deletions were missed. A mark in between
        would hide the downtime before it.
        """
        since_epoch = time.time() - clock()
        marks = {
            Partition(topic, number): Mark(mark.at - since_epoch, mark.end)
            for number, mark in checkpoint.caught_up.items()
        }
        with self._serving_change():
            progress = self.topics[topic]
            progress.served_marks |= marks
            progress.resumed |= marks.keys()
            if serve:
                progress.enter(Phase.KEPT, "it is served as it was kept, and not caught up yet")

    def hold(self, topic: str, reason: str) -> None:
        """Note that a topic is read to its end and can't be served; further records are no progress."""
        with self._serving_change():
            progress = self.topics[topic]
            progress.held_since = progress.held_since or clock()
            progress.reason = reason

    def finish(self, topic: str) -> None:
        """Note that a topic is read to its end, and served from the current generation."""
        with self._serving_change():
            progress = self.topics[topic]
            progress.enter(Phase.FOLLOWING)
            progress.held_since = None
            progress.resumed.clear()
            progress.served_marks = {partition: Mark(clock(), end) for partition, end in progress.targets.items()}

    def advance(self, positions: Iterable[tuple[Partition, int]]) -> None:
        """Advance positions, never back. For the reader, after the records before them are visible."""
        with self._changed:
            for partition, position in positions:
                current = self.topics[partition.topic].positions
                if position > current.get(partition, -1):
                    current[partition] = position
                    self._advanced_at = clock()
            self._changed.notify_all()
        self._notify()

    def is_complete(self, topic: str) -> bool:
        """Return True if all of a topic that is read is applied up to its targets."""
        with self._changed:
            return self.topics[topic].is_complete

    def missed_tombstones(self, topic: str, retention: float) -> Rebuild | None:
        """Return the rebuild that is needed if deletions may have been missed since the topic's checkpoint."""
        with self._changed:
            return self.topics[topic].missed_tombstones(clock(), retention)

    def checkpointed(self, topic: str) -> tuple[dict[int, int], dict[int, Mark]]:
        """Return positions and marks, by partition, of the generation of a topic that is read, served or not."""
        with self._changed:
            progress = self.topics[topic]
            progress.mark_caught_up(self._ends_asked_at)
            positions = {part.partition: position for part, position in progress.positions.items()}
            return positions, {part.partition: mark for part, mark in progress.reading_marks.items()}

    def note_ends(self, ends: Mapping[Partition, int], asked_at: float) -> None:
        """Keep the high watermarks that the broker gave when asked at ``asked_at`` (by `clock`)."""
        with self._changed:
            for topic in self.topics.values():
                topic.mark_caught_up(self._ends_asked_at)
                topic.ends = {partition: ends[partition] for partition in topic.positions if partition in ends}
            self._ends_asked_at = asked_at

    def note_missing(self, topics: Iterable[str]) -> None:
        """Keep which topics do not exist, while they are waited for. The appearance of one is progress."""
        missing = frozenset(topics)
        with self._changed:
            if self.missing - missing:
                self._advanced_at = clock()
            self.missing = missing

    def note_absent(self, topics: Iterable[str]) -> None:
        """Keep which topics the cluster does not know any more: their served data is old."""
        absent = frozenset(topics)
        with self._serving_change():
            for name, topic in self.topics.items():
                topic.is_absent = name in absent

    def wait_loaded(
        self,
        stall_timeout: float,
        start_timeout: float | None,
        began: float,
        report: Callable[[Loading], None],
        every: float = 0.2,
    ) -> None:
        """Wait until the store has left LOADING; ``began`` is when it started, by `clock`.

        ``report`` is called with the progress about every ``every`` seconds, outside of the lock. Raises StartTimeout,
        StoreFailed or StoreClosed.
        """
        while True:
            with self._changed:
                report_at = clock() + every
                while self.state is StoreState.LOADING and clock() < report_at:
                    self._changed.wait(min(every, self._remaining_seconds(stall_timeout, start_timeout, began)))
                if self.state is not StoreState.LOADING:
                    self.raise_end()
                    return
                loading = self.loading()
            report(loading)

    def wait_until(self, targets: Mapping[Partition, int], timeout: float, awaited: str) -> None:
        """Wait until every position is at its target or after it.

        Raises WaitTimeout with the missing offsets, StoreFailed when the reader has died, StoreClosed.
        """
        deadline = clock() + timeout
        with self._changed:
            while missing := missing_offsets(self.positions(), targets):
                self.raise_end()
                remaining = deadline - clock()
                if remaining <= 0:
                    raise wait_timeout(awaited, timeout, missing)
                self._changed.wait(remaining)

    def _remaining_seconds(self, stall_timeout: float, start_timeout: float | None, began: float) -> float:
        """Return the seconds that a load may still take without progress. Raises StartTimeout if none remain."""
        until_stall = stall_timeout - self._idle_seconds()
        remaining = until_stall if start_timeout is None else min(until_stall, began + start_timeout - clock())
        if remaining <= 0:
            stalled = f"no progress for {stall_timeout:g} s"
            raise StartTimeout(stalled if until_stall <= 0 else f"not ready in {start_timeout:g} s")
        return remaining

    def _idle_seconds(self) -> float:
        """Return the seconds without progress. Waiting for a missing topic does not count."""
        if self.missing:
            return 0.0
        held_since = [topic.held_since for topic in self.topics.values() if topic.held_since is not None]
        return max(0.0, clock() - min([self._advanced_at, *held_since]))

    def _served_marks(self, topic: TopicProgress) -> dict[Partition, Mark]:
        """Return the marks of the served data; where a served topic has none, those of where its reading began."""
        topic.mark_caught_up(self._ends_asked_at)
        if self.serves and topic.phase is not Phase.REBUILDING:
            return topic.start_marks | topic.served_marks
        return dict(topic.served_marks)

    @contextmanager
    def _serving_change(self) -> Iterator[None]:
        """Lock the progress inside the block; afterwards update the state, wake waiters and call listeners."""
        with self._changed:
            yield
            if self.serves:
                self._move(self._serving_state())
            self._changed.notify_all()
        self._notify()


def _joined(by_topic: Iterable[Mapping[Partition, int]]) -> Offsets:
    return {part: offset for offsets in by_topic for part, offset in offsets.items()}
