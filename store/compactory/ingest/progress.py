"""How far a store is, and everybody who waits for it to get further.

The reader thread moves positions after the change is visible; waiters are woken by progress, by the reader's death and
by close. One condition guards everything; reads of single attributes need no lock.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from threading import Condition
from typing import Any

from compactory.callbacks import Contained
from compactory.errors import CompactoryError, WaitTimeout
from compactory.ingest.caught_up import Mark, Marks
from compactory.ingest.clock import clock
from compactory.ingest.loading import Loading, blocking, measure, patience
from compactory.ingest.refusal import refusal
from compactory.ingest.resumption import gap_of
from compactory.records import Partition, Rebuild, StoreState
from compactory.storage.checkpoint import Checkpoint

__all__ = ["Progress", "clock"]

_KEPT = "it is served as it was kept, and not caught up yet"


class Progress:
    """State, positions and targets of one store. Thread-safe.

    What was read of a topic is a *generation*. A rebuild begins the next one: its positions count for the reader at
    once, and for waiters when the topic is served from it.
    """

    def __init__(self, topics: Iterable[str] = ()) -> None:
        self.state = StoreState.NEW
        self.cause: BaseException | None = None
        self.ends: dict[Partition, int] = {}  # high watermarks as last asked, for lag()
        self.missing: frozenset[str] = frozenset()  # topics that the cluster does not know, while that is waited for
        self.rebuilds: Counter[tuple[str, str]] = Counter()  # (topic, cause) -> how often since the start
        self._generations = dict.fromkeys(topics, 0)
        self._awaited = set(self._generations)  # topics whose partitions are not known yet in this generation
        self._hidden: set[str] = set()  # topics served from an older generation than the one that is read
        self._stale: dict[str, str] = {}  # topic -> why what is served of it is old
        self._demands: dict[str, Rebuild] = {}  # rebuilds that the reader has not begun yet
        self._positions: dict[Partition, int] = {}  # next offset to read
        self._starts: dict[Partition, int] = {}  # where this generation's reading began
        self._targets: dict[Partition, int] = {}  # high watermark captured when the partition was first seen
        self._new: list[Partition] = []  # seen, and not yet taken by the reader
        self._marks = Marks()
        self._kept: set[str] = set()  # topics served from a checkpoint, and not caught up yet
        self._identities: dict[str, str | None] = {}  # ids of the topics that are read, as the reading began
        self._held: dict[str, float] = {}  # topics that are read and not served, as a directory is unusable -> since
        self._asked_at = 0.0  # when ``ends`` were asked for
        self._began = self._moved_at = clock()
        self._changed = Condition()  # guards all of the above
        self._listeners: tuple[Contained, ...] = ()
        self._inherited: tuple[Condition, BaseException | None] | None = None  # in a forked child: of its parent

    # -- what anybody may ask

    def positions(self) -> dict[Partition, int]:
        """Return the next offset to read of every partition: what lies before it is visible."""
        with self._changed:
            return {part: offset for part, offset in self._positions.items() if not self._is_hidden(part.topic)}

    def lag(self) -> dict[Partition, int]:
        """Return the offsets between what is visible and the last known end."""
        with self._changed:
            positions = self.positions()
            return {part: max(0, end - positions.get(part, 0)) for part, end in self.ends.items()}

    @property
    def serves(self) -> bool:
        """Whether lookups are answered and kept up to date as far as Kafka allows."""
        return self.state in (StoreState.READY, StoreState.STALE)

    def stale(self) -> dict[str, str]:
        """Return why what is served of a topic is old, by topic; empty where nothing is."""
        with self._changed:
            return dict(self._stale)

    def caught_up(self) -> dict[Partition, Mark]:
        """Return when (by `clock`) each partition was last known to be applied to its end, and that end."""
        with self._changed:
            self._note_caught_up()
            return self._marks.served(self._hidden) if self.serves else self._marks.at_ends()

    def read_marks(self, topic: str) -> dict[int, Mark]:
        """Return the same of what is read of a topic, served or not, and of partitions that were not at the end yet."""
        with self._changed:
            self._note_caught_up()
            return self._marks.read(topic, hidden=topic in self._hidden)

    def identity(self, topic: str) -> str | None:
        """Return the id of the topic that is read, as it was when its reading began."""
        return self._identities.get(topic)

    def age(self, topic: str) -> float:
        """Return the seconds since all of a topic's partitions were last known to be applied; infinite before that."""
        with self._changed:
            moments = [at for part, (at, _) in self.caught_up().items() if part.topic == topic]
            if not moments or (topic in self._awaited and topic not in self._hidden | self._kept):
                return float("inf")
            return max(0.0, clock() - min(moments))

    def blocking(self) -> list[dict[str, Any]]:
        """Return what is short of its target (missing topics first), as StartTimeout and ``/readyz`` list it."""
        with self._changed:
            return blocking(self.missing, self._positions, self._targets)

    def loading(self) -> Loading:
        """Return how far the reading towards the targets is."""
        with self._changed:
            topics = self._hidden | self._kept or self._generations.keys()
            asked = [(part, target) for part, target in self._targets.items() if part.topic in topics]
            places = [(self._starts[part], self._positions[part], target) for part, target in asked]
            return measure(places, max(clock() - self._began, 0.0))

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called after each change of positions or state, by the thread that made it.

        It must be quick: the reader waits for it. What it raises is logged, the first time.
        """
        with self._changed:
            self._listeners += (Contained("a listener of subscribe", listener),)

    def unsubscribe(self, listener: Callable[[], None]) -> None:
        """Stop calling ``listener``; a call under way may still end later."""
        with self._changed:
            self._listeners = tuple(other for other in self._listeners if other.function != listener)

    # -- states

    def move(self, state: StoreState, cause: BaseException | None = None) -> bool:
        """Change the state and wake everybody; False where the move is not legal (closed is for good)."""
        with self._changed:
            moved = self._move(state, cause)
        if moved:
            self._tell()
        return moved

    def serve(self) -> bool:
        """Everything there is can be served: READY, or STALE where some of it is known to be old."""
        with self._changed:
            moved = self._move(StoreState.STALE if self._stale else StoreState.READY, None)
        if moved:
            self._tell()
        return moved

    def mark_stale(self, topic: str, why: str) -> None:
        """What is served of a topic is old from now on, until `finish_rebuild`."""
        with self._changed:
            self._stale[topic] = why
            if self.state is StoreState.READY:
                self._move(StoreState.STALE, None)
        self._tell()

    def hold(self, topic: str, why: str) -> None:
        """What is read of a topic is complete and can't be served; what comes meanwhile is no progress."""
        with self._changed:
            self._held.setdefault(topic, clock())
        if self.serves:
            self.mark_stale(topic, why)

    def finish_rebuild(self, topic: str) -> None:
        """What is read of a topic is what is served of it, and complete."""
        with self._changed:
            self._held.pop(topic, None)
            self._hidden.discard(topic)
            self._kept.discard(topic)
            targets = {part: end for part, end in self._targets.items() if part.topic == topic}
            self._marks.finish_rebuild(topic, targets, clock())
        self.clear_stale(topic)

    def clear_stale(self, topic: str) -> None:
        """What was outdated is there as it was; it stays stale where it is read anew or not caught up yet."""
        with self._changed:
            if topic in self._kept:
                self._stale[topic] = _KEPT
            elif not self._is_hidden(topic):
                self._stale.pop(topic, None)
            if self.state is StoreState.STALE and not self._stale:
                self._move(StoreState.READY, None)
            self._changed.notify_all()
        self._tell()

    def orphan(self, cause: BaseException) -> None:
        """Fail without taking the lock: in a forked child its holder may not exist any more.

        What it had is kept: an error's traceback may hold clients of the parent, which must not be destroyed here.
        """
        self._inherited = (self._changed, self.cause)
        self._changed = Condition()
        self.state = StoreState.FAILED
        self.cause = cause

    # -- generations

    def generations(self) -> dict[str, int]:
        """Return the number of each topic's present generation."""
        with self._changed:
            return dict(self._generations)

    def hides(self, topic: str) -> bool:
        """Say whether a topic is served from an older generation than the one that is read."""
        return topic in self._hidden

    def awaits(self, topic: str) -> bool:
        """Say whether nothing of the topic's present generation is known yet."""
        return topic in self._awaited

    def demand(self, topic: str, rebuild: Rebuild) -> None:
        """Ask the reader to begin a new generation of a topic. The first demand counts until it is met."""
        with self._changed:
            self._demands.setdefault(topic, rebuild)

    def demanded(self) -> dict[str, Rebuild]:
        """Return the rebuilds that the reader has to begin."""
        if not self._demands:
            return {}
        with self._changed:
            return dict(self._demands)

    def restart(self, topic: str) -> None:
        """A new, empty generation of the topic begins, as demanded; the former goes on being served. For the reader."""
        with self._changed:
            rebuild = self._demands.pop(topic)
            self.rebuilds[topic, rebuild.cause.value] += 1
            self._generations[topic] += 1
            self._awaited.add(topic)
            self._held.pop(topic, None)
            self._identities.pop(topic, None)
            self._marks.restart(topic, served=self.serves)
            for by_partition in (self._positions, self._starts, self._targets, self.ends):
                for partition in [partition for partition in by_partition if partition.topic == topic]:
                    del by_partition[partition]
            self._new = [partition for partition in self._new if partition.topic != topic]
            self._began = clock()
            if self.serves:
                self._hidden.add(topic)
                self._stale[topic] = rebuild.detail
                if self.state is StoreState.READY:
                    self._move(StoreState.STALE, None)
        self._tell()

    def add(
        self, starts: Mapping[Partition, int], targets: Mapping[Partition, int],
        generations: Mapping[str, int], identities: Mapping[str, str | None],
    ) -> None:  # fmt: skip
        """Take up partitions not known before, to be read from ``starts`` to ``targets``, of topics of these ids.

        Nothing of a topic that is in another generation than it was when these were asked for.
        """
        with self._changed:
            for partition, start in starts.items():
                topic = partition.topic
                known = partition in self._positions or partition not in targets
                if known or topic in self._demands or generations.get(topic) != self._generations[topic]:
                    continue
                self._positions[partition] = self._starts[partition] = start
                self._targets[partition] = targets[partition]
                self._new.append(partition)
                self._marks.begin(partition, clock(), start)
                if topic in self._awaited:
                    self._awaited.discard(topic)
                    self._identities[topic] = identities.get(topic)
                if not self._generations[topic]:  # only the first time: reading anew over and over is no progress
                    self._moved_at = clock()
            self._changed.notify_all()

    def keep(self, topic: str, checkpoint: Checkpoint) -> None:
        """What a checkpoint tells of is served before Kafka is asked."""
        self.resume(topic, checkpoint)
        with self._changed:
            self._kept.add(topic)
            self._stale[topic] = _KEPT

    def resume(self, topic: str, checkpoint: Checkpoint) -> None:
        """A topic is gone on with from a checkpoint: note when its partitions were last at their end."""
        since_epoch = time.time() - clock()
        with self._changed:
            for number, mark in checkpoint.caught_up.items():
                self._marks.resume(Partition(topic, number), (mark.at - since_epoch, mark.end))

    def gap(self, topic: str, retention: float) -> Rebuild | None:
        """Return why deletions may have been missed from the checkpoint that a topic was resumed from until now."""
        with self._changed:
            now = clock()
            for partition, (at, end) in self._marks.resumed(topic).items():
                if self._positions.get(partition, -1) > end and now - at > retention:
                    return gap_of(partition, now - at, retention)
        return None

    # -- for the reader and discovery

    def reached(self) -> dict[Partition, int]:
        """Return the next offset to read of every partition, of generations that are not served yet as well."""
        with self._changed:
            return dict(self._positions)

    def take_all(self) -> dict[Partition, int]:
        """Return every partition with its position: for a reader that begins with a new consumer."""
        with self._changed:
            self._new = []
            return dict(self._positions)

    def take_new(self) -> dict[Partition, int]:
        """Return the partitions (and their positions) that the reader has not taken yet. For the reader."""
        if not self._new:
            return {}
        with self._changed:
            taken, self._new = self._new, []
            return {partition: self._positions[partition] for partition in taken}

    def advance(self, positions: Iterable[tuple[Partition, int]]) -> None:
        """Move positions on, never back. For the reader, after what lies before them is visible."""
        with self._changed:
            for partition, position in positions:
                if position > self._positions.get(partition, -1):
                    self._positions[partition] = position
                    self._moved_at = clock()
            self._changed.notify_all()
        self._tell()

    def note_ends(self, ends: dict[Partition, int], asked_at: float) -> None:
        """Keep the high watermarks that the broker gave when asked at ``asked_at`` (by `clock`)."""
        with self._changed:
            self._note_caught_up()
            self.ends = {partition: end for partition, end in ends.items() if partition in self._positions}
            self._asked_at = asked_at

    def note_missing(self, topics: Iterable[str]) -> None:
        """Keep which topics the cluster does not know."""
        self.missing = frozenset(topics)

    def is_complete(self, topic: str) -> bool:
        """Say whether the topic's partitions are known, and each is applied up to its target."""
        with self._changed:
            return topic not in self._awaited and all(
                self._positions[partition] >= target
                for partition, target in self._targets.items()
                if partition.topic == topic
            )

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
                    idle = 0.0 if self.missing else now - min(self._moved_at, *self._held.values(), now)
                    self._changed.wait(min(every, patience(idle, stall_timeout, now - began, start_timeout)))
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
            while gap := self._gap(targets):
                self.raise_end()
                left = deadline - clock()
                if left <= 0:
                    places = ", ".join(f"{part.topic}:{part.partition} by {short}" for part, short in gap.items())
                    raise WaitTimeout(f"{what} was not reached in {timeout:g} s: behind in {places}", gap)
                self._changed.wait(left)

    def raise_end(self) -> None:
        """Raise StoreFailed or StoreClosed where that is how the store ended."""
        if self.state in (StoreState.FAILED, StoreState.CLOSED):
            raise self.refusal()

    def refusal(self) -> CompactoryError:
        """Return the error that says why the store does not answer now."""
        return refusal(self.state, self.cause)

    def _is_hidden(self, topic: str) -> bool:
        """Say whether positions of a topic tell nothing of what is served: the rebuild may not have begun yet."""
        return topic in self._hidden or topic in self._demands

    def _move(self, state: StoreState, cause: BaseException | None) -> bool:
        if not self.state.may_become(state):
            return False
        self.state = state
        self.cause = cause or self.cause
        self._moved_at = clock()
        self._changed.notify_all()
        return True

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    def _note_caught_up(self) -> None:
        for partition, end in self.ends.items():
            if not self._is_hidden(partition.topic) and self._positions.get(partition, -1) >= end:
                self._marks.note(partition, (self._asked_at, end))

    def _gap(self, targets: Mapping[Partition, int]) -> dict[Partition, int]:
        visible = {part: -1 if self._is_hidden(part.topic) else self._positions.get(part, -1) for part in targets}
        return {part: target - max(0, visible[part]) for part, target in targets.items() if visible[part] < target}
