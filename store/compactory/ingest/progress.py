"""How far a store is, and the callers that wait for it to get further.

The reader thread moves positions after the change is visible; waiters are woken by progress, by the reader's death and
by close. One condition guards everything; reads of single attributes need no lock.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Condition
from typing import Any

from compactory.callbacks import Contained
from compactory.clock import clock
from compactory.errors import CompactoryError, NotReady, StoreClosed, StoreFailed
from compactory.ingest.topic_progress import Mark, Phase, TopicProgress
from compactory.loading import (
    Loading,
    blocking_partitions,
    missing_offsets,
    progress_of,
    remaining_seconds,
    wait_timeout,
)
from compactory.records import Partition, Rebuild, StoreState
from compactory.storage.checkpoint import Checkpoint

__all__ = ["Progress"]


class Progress:
    """State of one store, and the progress of each topic. Thread-safe.

    ``topics``  the progress of each topic: changed, and gone through, under the lock. Single attributes may be read
                without it; the reader alone changes phases

    The positions of a generation count for the reader at once, and for waiters when the topic is served from it.
    """

    def __init__(self, topics: Iterable[str] = ()) -> None:
        self.state = StoreState.NEW
        self.cause: BaseException | None = None
        self.missing: frozenset[str] = frozenset()  # topics that the cluster does not know, while that is waited for
        self.rebuilds: Counter[tuple[str, str]] = Counter()  # (topic, cause) -> how often since the start
        self._began = self._moved_at = clock()
        self.topics = {name: TopicProgress(self._began) for name in topics}
        self._asked_at = 0.0  # when ends were asked for
        self._changed = Condition()  # guards all of the above
        self._listeners: tuple[Contained, ...] = ()
        self._inherited: tuple[Condition, BaseException | None] | None = None  # in a forked child: of its parent

    # -- what anybody may ask

    def positions(self) -> dict[Partition, int]:
        """Return the next offset to read of every partition: what lies before it is visible."""
        with self._changed:
            return self._joined(topic.positions for topic in self.topics.values() if not topic.hidden)

    def lag(self) -> dict[Partition, int]:
        """Return the offsets between what is visible and the last known end."""
        with self._changed:
            positions = self.positions()
            ends = self._joined(topic.ends for topic in self.topics.values())
            return {part: max(0, end - positions.get(part, 0)) for part, end in ends.items()}

    @property
    def serves(self) -> bool:
        """Whether lookups are answered and kept up to date as far as Kafka allows."""
        return self.state in (StoreState.READY, StoreState.STALE)

    def stale(self) -> dict[str, str]:
        """Return why what is served of a topic is old, by topic; empty where nothing is."""
        with self._changed:
            return {name: why for name, topic in self.topics.items() if (why := topic.stale) is not None}

    def caught_up(self) -> dict[Partition, Mark]:
        """Return when (by `clock`) each partition was last known to be applied to its end, and that end."""
        with self._changed:
            return {part: mark for topic in self.topics.values() for part, mark in self._marks(topic).items()}

    def age(self, topic: str) -> float:
        """Return the seconds since all of a topic's partitions were last known to be applied; infinite before that."""
        with self._changed:
            its = self.topics[topic]
            return its.age(self._marks(its).values(), clock())

    def blocking(self) -> list[dict[str, Any]]:
        """Return what is short of its target (missing topics first), as StartTimeout and ``/readyz`` list it."""
        with self._changed:
            targets = self._joined(topic.targets for topic in self.topics.values())
            return blocking_partitions(self.missing, self.reached(), targets)

    def loading(self) -> Loading:
        """Return how far the reading towards the targets is."""
        with self._changed:
            behind = [topic for topic in self.topics.values() if topic.phase in (Phase.KEPT, Phase.REBUILDING)]
            places = [
                (topic.starts[part], topic.positions[part], target)
                for topic in behind or self.topics.values()
                for part, target in topic.targets.items()
            ]
            return progress_of(places, max(clock() - self._began, 0.0))

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each change of positions or state, in the thread that made it.

        It must be quick: the reader waits for it. Its first error is logged.
        """
        with self._changed:
            self._listeners += (Contained("a listener of subscribe", listener),)

    def unsubscribe(self, listener: Callable[[], None]) -> None:
        """Stop calling ``listener``; a call under way may still end later."""
        with self._changed:
            self._listeners = tuple(other for other in self._listeners if other.function != listener)

    # -- states

    def move(self, state: StoreState, cause: BaseException | None = None) -> bool:
        """Change the state and wake all waiters; False where the move is not legal (closed is for good)."""
        with self._changed:
            moved = self._move(state, cause)
        if moved:
            self._notify()
        return moved

    def serve(self) -> bool:
        """Begin to serve: READY, or STALE where some topic is known to be old."""
        with self._changed:
            moved = self._move(StoreState.STALE if self.stale() else StoreState.READY, None)
        if moved:
            self._notify()
        return moved

    def orphan(self, cause: BaseException) -> None:
        """Fail without taking the lock: in a forked child its holder may not exist any more.

        What it had is kept: an error's traceback may hold clients of the parent, which must not be destroyed here.
        """
        self._inherited = (self._changed, self.cause)
        self._changed = Condition()
        self.state = StoreState.FAILED
        self.cause = cause

    # -- generations: for the reader and discovery

    def generations(self) -> dict[str, int]:
        """Return the number of each topic's present generation."""
        with self._changed:
            return {name: topic.generation for name, topic in self.topics.items()}

    def awaits(self, topic: str) -> bool:
        """Say whether nothing of the topic's present generation is known yet."""
        return not self.topics[topic].positions

    def demand(self, topic: str, rebuild: Rebuild) -> None:
        """Ask the reader to begin a new generation of a topic. The first demand counts until it is met."""
        with self._changing():
            its = self.topics[topic]
            its.demand = its.demand or rebuild

    def demanded(self) -> list[str]:
        """Return the topics of which the reader has to begin a new generation."""
        return [name for name, topic in self.topics.items() if topic.demand is not None]

    def restart(self, topic: str) -> Rebuild:
        """Begin a new, empty generation of a topic, as demanded; the former one is served on. For the reader."""
        with self._changing():
            self._began = clock()
            rebuild = self.topics[topic].restart(self._began, store_loads=self.state is StoreState.LOADING)
            self.rebuilds[topic, rebuild.cause.value] += 1
        return rebuild

    def add(
        self, starts: Mapping[Partition, int], targets: Mapping[Partition, int],
        generations: Mapping[str, int], identities: Mapping[str, str | None],
    ) -> None:  # fmt: skip
        """Take up partitions not known before, to be read from ``starts`` to ``targets``, of topics of these ids.

        Nothing of a topic that is in another generation than it was when these were asked for.
        """
        with self._changed:
            for partition, start in starts.items():
                topic = self.topics[partition.topic]
                known = partition in topic.positions or partition not in targets
                if known or topic.demand is not None or generations.get(partition.topic) != topic.generation:
                    continue
                if not topic.positions:
                    topic.identity = identities.get(partition.topic)
                topic.begin(partition, start, targets[partition], clock())
                if not topic.generation:  # only the first time: reading anew over and over is no progress
                    self._moved_at = clock()
            self._changed.notify_all()

    def keep(self, topic: str, checkpoint: Checkpoint) -> None:
        """Serve the state of a checkpoint before Kafka is asked."""
        self.resume(topic, checkpoint)
        with self._changing():
            self.topics[topic].keep()

    def resume(self, topic: str, checkpoint: Checkpoint) -> None:
        """Go on with a topic from a checkpoint: note when its partitions were last at their end."""
        since_epoch = time.time() - clock()
        marks = {
            Partition(topic, number): (mark.at - since_epoch, mark.end) for number, mark in checkpoint.caught_up.items()
        }
        with self._changed:
            self.topics[topic].resume(marks)

    def hold(self, topic: str, why: str) -> None:
        """Note that a topic is read to its end and can't be served; further records are no progress."""
        with self._changing():
            self.topics[topic].hold(clock(), why)

    def finish(self, topic: str) -> None:
        """Note that a topic is read to its end, and served from the present generation."""
        with self._changing():
            self.topics[topic].finish(clock())

    def reached(self) -> dict[Partition, int]:
        """Return the next offset to read of every partition, of generations that are not served yet as well."""
        with self._changed:
            return self._joined(topic.positions for topic in self.topics.values())

    def advance(self, positions: Iterable[tuple[Partition, int]]) -> None:
        """Move positions on, never back. For the reader, after what lies before them is visible."""
        with self._changed:
            for partition, position in positions:
                known = self.topics[partition.topic].positions
                if position > known.get(partition, -1):
                    known[partition] = position
                    self._moved_at = clock()
            self._changed.notify_all()
        self._notify()

    def is_complete(self, topic: str) -> bool:
        """Say whether all of a topic that is read is applied up to its targets."""
        with self._changed:
            return self.topics[topic].complete

    def gap(self, topic: str, retention: float) -> Rebuild | None:
        """Return why deletions may have been missed from the checkpoint that a topic was resumed from until now."""
        with self._changed:
            return self.topics[topic].gap(retention, clock())

    def checkpointed(self, topic: str) -> tuple[dict[int, int], dict[int, Mark]]:
        """Return positions and marks, by partition, of the generation of a topic that is read, served or not."""
        with self._changed:
            its = self.topics[topic]
            its.note_caught_up(self._asked_at)
            positions = {part.partition: position for part, position in its.positions.items()}
            return positions, {part.partition: mark for part, mark in its.read_marks().items()}

    def note_ends(self, ends: Mapping[Partition, int], asked_at: float) -> None:
        """Keep the high watermarks that the broker gave when asked at ``asked_at`` (by `clock`)."""
        with self._changed:
            for topic in self.topics.values():
                topic.note_caught_up(self._asked_at)
                topic.ends = {partition: ends[partition] for partition in topic.positions if partition in ends}
            self._asked_at = asked_at

    def note_missing(self, topics: Iterable[str]) -> None:
        """Keep which topics the cluster does not know, while they are waited for. One that is found is progress."""
        missing = frozenset(topics)
        with self._changed:
            if self.missing - missing:
                self._moved_at = clock()
            self.missing = missing

    def note_absent(self, topics: Iterable[str]) -> None:
        """Keep which topics the cluster does not know any more: what is served of them is old."""
        absent = frozenset(topics)
        with self._changing():
            for name, topic in self.topics.items():
                topic.absent = name in absent

    # -- waiting

    def wait_loaded(
        self,
        stall_timeout: float,
        start_timeout: float | None,
        began: float,
        tick: Callable[[Loading], None],
        every: float = 0.2,
    ) -> None:
        """Wait until the store has left LOADING; ``began`` is when it started, by `clock`.

        ``tick`` is called with the progress about every ``every`` seconds, outside of the lock. Raises StartTimeout,
        StoreFailed or StoreClosed.
        """
        while True:
            with self._changed:
                tick_at = clock() + every
                while self.state is StoreState.LOADING and (now := clock()) < tick_at:
                    held = [topic.held_since for topic in self.topics.values() if topic.held_since is not None]
                    idle = 0.0 if self.missing else now - min(self._moved_at, *held, now)
                    self._changed.wait(min(every, remaining_seconds(idle, stall_timeout, now - began, start_timeout)))
                if self.state is not StoreState.LOADING:
                    self.raise_end()
                    return
                loading = self.loading()
            tick(loading)

    def wait_until(self, targets: Mapping[Partition, int], timeout: float, what: str) -> None:
        """Wait until every position is at or beyond its target.

        Raises WaitTimeout with the gap, StoreFailed when the reader has died, StoreClosed.
        """
        deadline = clock() + timeout
        with self._changed:
            while missing := missing_offsets(self.positions(), targets):
                self.raise_end()
                left = deadline - clock()
                if left <= 0:
                    raise wait_timeout(what, timeout, missing)
                self._changed.wait(left)

    def raise_end(self) -> None:
        """Raise StoreFailed or StoreClosed where that is how the store ended."""
        if self.state in (StoreState.FAILED, StoreState.CLOSED):
            raise self.refusal()

    def refusal(self) -> CompactoryError:
        """Return the error that says why the store does not answer now."""
        if self.state is StoreState.CLOSED:
            return StoreClosed("the store is closed, or nothing referred to it any more: make a new one and keep it")
        if self.state is StoreState.FAILED:
            return StoreFailed(f"the store failed: {str(self.cause) or type(self.cause).__name__}", self.cause)
        if self.state is StoreState.NEW:
            return NotReady("the store was not started: call start(), or use it in a with block")
        return NotReady("the store is loading: it answers once it has read to the high watermark")

    def _marks(self, topic: TopicProgress) -> dict[Partition, Mark]:
        topic.note_caught_up(self._asked_at)
        return topic.marks(begun=self.serves)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock for a change of what is served; then set the state by it, wake waiters and call listeners."""
        with self._changed:
            yield
            if self.serves:
                self._move(StoreState.STALE if self.stale() else StoreState.READY, None)
            self._changed.notify_all()
        self._notify()

    def _move(self, state: StoreState, cause: BaseException | None) -> bool:
        if not self.state.may_become(state):
            return False
        self.state = state
        self.cause = cause or self.cause
        self._moved_at = clock()
        self._changed.notify_all()
        return True

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    @staticmethod
    def _joined(by_topic: Iterable[Mapping[Partition, int]]) -> dict[Partition, int]:
        return {part: offset for each in by_topic for part, offset in each.items()}
