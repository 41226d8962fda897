"""Asks the cluster, now and then and when told to, what there is to read: partitions, ends, topic identities."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from threading import Event, Lock
from typing import Literal

from compactory.clock import clock
from compactory.errors import CompactoryError, ConfigError, StoreClosed, Unreachable
from compactory.ingest.progress import Progress
from compactory.ingest.resumption import gap_of, obstacle, truncation_of
from compactory.ingest.topic_config import Policies
from compactory.ingest.topic_tables import TopicTables
from compactory.kafka.client import Kafka
from compactory.records import Partition, Rebuild, RebuildCause, StoreState, Topic
from compactory.stoppable_thread import StoppableThread

__all__ = ["Discovery"]

log = logging.getLogger("compactory.store")

_INTERVAL = 2.0  # seconds; a new partition is found within two of them
_REMEDY = "create it with cleanup.policy=compact, let a source do so, or wait for it (missing_topic = wait)"


class Discovery:
    """Keeps `Progress` informed of partitions and ends, and demands a rebuild where a topic is not what was read.

    ``look`` may be called by any thread; a thread of its own calls it every two seconds between start and stop. An
    unreachable broker changes nothing. ``tables_by_topic`` has the tables that a topic is read into.
    """

    def __init__(
        self,
        kafka: Kafka,
        tables_by_topic: Mapping[str, TopicTables],
        progress: Progress,
        missing_topic: Literal["fail", "wait"] = "fail",
    ) -> None:
        self.topics: dict[str, Topic] = {}
        self.cluster_id: str | None = None
        self._kafka = kafka
        self._tables_by_topic = tables_by_topic
        self._names = sorted(progress.topics)
        self._progress = progress
        self._waits = missing_topic == "wait"
        self._policies = Policies(kafka)
        self._missing_since: dict[str, float] = {}
        self._short_since: dict[Partition, float] = {}  # partitions whose end lies before our position
        self._looking = Lock()  # one look at a time: guards all of the above
        self._notify = Event()
        self._thread = StoppableThread("discovery")

    def open(self, timeout: float) -> None:
        """Take the first look. Raises ConfigError naming every topic that does not exist, Unreachable."""
        deadline = clock() + timeout
        self.cluster_id = self._kafka.cluster_id(timeout)
        found = self._kafka.topics(self._names, _left(deadline))
        missing = [name for name in self._names if name not in found]
        if missing and not self._waits:
            raise ConfigError(self._kafka.absence(name, _REMEDY, _left(deadline)) for name in missing)
        if missing:
            log.warning("waiting for topics that do not exist: %s", ", ".join(missing))
            self._progress.note_missing(missing)
        if found:
            with self._looking:
                self._look(_left(deadline))

    def look(self, timeout: float) -> dict[Partition, int]:
        """Return the high watermarks of all partitions, after making new ones known.

        Raises Unreachable, also where the cluster does not know one of the topics, and where callers that ask at the
        same time get no answer either; StoreFailed or StoreClosed where that happens while nothing is answered.
        """
        deadline = clock() + timeout
        while True:
            try:
                ends, missing = self._ask(min(max(deadline - clock(), 0.0), _INTERVAL))
                break
            except Unreachable:
                self._progress.raise_end()
                if clock() >= deadline:
                    raise
        if missing is not None:
            raise Unreachable("Kafka", f"Kafka at {self._kafka.bootstrap} does not know topic {missing!r} at present")
        return ends

    def start(self) -> None:
        """Look every two seconds from now on, and whenever `wake` is called."""
        self._thread.start(self._run)

    def wake(self) -> None:
        """Have the thread look at once."""
        self._notify.set()

    def stop(self) -> None:
        """End the thread and wait for it. Safe to call twice, before start and by the thread itself."""
        self._thread.stopping.set()
        self._notify.set()
        self._thread.stop()

    def still_the_same(self, topics: Collection[str]) -> bool:
        """Say whether topics are those that were read; where not, rebuilds are demanded. True where Kafka does not say.

        False also while another thread looks for long.
        """
        if not self._looking.acquire(timeout=_INTERVAL):
            return False
        try:
            found = self._kafka.topics(topics, _INTERVAL)
            changed = [name for name in topics if name in found and self._identified(found[name])]
        except CompactoryError:
            return True
        finally:
            self._looking.release()
        return not changed

    def retention(self, topic: str) -> float:
        """Return how long tombstones of a topic are kept at least, in seconds."""
        return self._policies.retention(topic)

    def _run(self) -> None:
        reachable, refused = True, ""
        while self._goes_on():
            try:
                self._ask(_INTERVAL)
            except StoreClosed:
                return
            except ConfigError as error:
                if self._progress.state is StoreState.LOADING:
                    self._progress.move(StoreState.FAILED, error)
                    return
                if str(error) != refused:
                    log.error("%s; lookups go on, trying again every %g s", error, _INTERVAL)
                refused = str(error)
            except CompactoryError as error:
                if reachable:
                    log.warning("%s; lookups go on, trying again every %g s", error, _INTERVAL)
                reachable = False
            except Exception:  # whatever it is: a store that looks no more would never hear of what it has to
                log.exception("looking for changes failed; lookups go on, trying again every %g s", _INTERVAL)
            else:
                reachable, refused = True, ""

    def _goes_on(self) -> bool:
        """Wait until it is time to look; False where the thread is to end."""
        self._notify.wait(_INTERVAL)
        self._notify.clear()
        return not self._thread.stopping.is_set()

    def _ask(self, timeout: float) -> tuple[dict[Partition, int], str | None]:
        """Look when no other thread does; return a missing topic too."""
        until = clock() + timeout
        if not self._looking.acquire(timeout=timeout):
            raise Unreachable("Kafka", f"Kafka at {self._kafka.bootstrap} has not answered an earlier request yet")
        try:
            return self._look(max(until - clock(), 0.0)), min(self._missing_since, default=None)
        finally:
            self._looking.release()

    def _look(self, timeout: float) -> dict[Partition, int]:
        """Look, holding the lock."""
        deadline = clock() + timeout
        generations = self._progress.generations()
        if self.cluster_id is None:
            self.cluster_id = self._kafka.cluster_id(timeout)
        found = self._kafka.topics(self._names, _left(deadline))
        renamed = {name for name, topic in found.items() if self._identified(topic)}
        self._note_missing([name for name in self._names if name not in found])
        self._policies.refresh(found, _left(deadline))
        partitions = [partition for topic in found.values() for partition in topic.all()]
        reading = self._progress.reached()
        asked_at = clock()
        ends = self._kafka.high_watermarks(partitions, _left(deadline))
        self._compare(reading, {part: end for part, end in ends.items() if part.topic not in renamed}, asked_at)
        self._take_up(found, ends, reading, generations, _left(deadline))
        self._progress.note_ends(ends, asked_at)
        return ends

    def _identified(self, topic: Topic) -> bool:
        """Keep what the topic is now; say whether it is another one than before, and demand a rebuild then."""
        known = self.topics.get(topic.name)
        another = known is not None and known.topic_id != topic.topic_id and known.topic_id and topic.topic_id
        if known is not None and another:
            detail = f"it was deleted and created again (topic id {known.topic_id}, now {topic.topic_id})"
            self._progress.demand(topic.name, Rebuild(RebuildCause.RECREATED, detail))
        self.topics[topic.name] = topic  # last: a token of the new topic must not meet positions of the former one
        return bool(another)

    def _take_up(
        self,
        found: Mapping[str, Topic],
        ends: Mapping[Partition, int],
        reading: Collection[Partition],
        generations: Mapping[str, int],
        timeout: float,
    ) -> None:
        """Make partitions known that are not, and begin generations of which nothing is known."""
        new = [partition for partition in ends if partition not in reading]
        if not new:
            return
        starts = self._kafka.log_starts(new, timeout)
        for name in {partition.topic for partition in new}:
            if not self._progress.awaits(name):
                continue
            tables = self._tables_by_topic[name]
            checkpoint = tables.kept()
            if checkpoint is None:
                continue
            hindrance = obstacle(
                checkpoint, found[name], cluster_id=self.cluster_id, definition=tables.definition, starts=starts,
                ends=ends, retention=self.retention(name), now=time.time(),
            )  # fmt: skip
            if hindrance is not None:
                self._progress.demand(name, hindrance)
                continue
            tables.forget_epochs_before(starts)
            starts |= {Partition(name, number): offset for number, offset in checkpoint.positions.items()}
            self._progress.resume(name, checkpoint)
        self._progress.add(starts, ends, generations, {name: topic.topic_id for name, topic in found.items()})

    def _compare(self, reading: Mapping[Partition, int], ends: Mapping[Partition, int], now: float) -> None:
        """Demand a rebuild where a log ends before our position, or we were away from its end for too long."""
        marks = self._progress.caught_up()
        short = {part: end for part, end in ends.items() if end < reading.get(part, 0)}
        self._short_since = {part: self._short_since.get(part, now) for part in short}
        for part, end in short.items():
            if now - self._short_since[part] >= _INTERVAL:  # a new leader may not know the end at once
                self._progress.demand(part.topic, truncation_of(part, reading[part], end))
        for part, end in ends.items():
            unseen = part not in reading or part not in marks or self._progress.topics[part.topic].hidden
            if unseen or self._progress.state is StoreState.LOADING:
                continue
            gap = gap_of(part, marks[part], end, now, self.retention(part.topic))
            if gap is not None:
                self._progress.demand(part.topic, gap)

    def _note_missing(self, missing: list[str]) -> None:
        """A topic that stays away is absent; one that is back as it was is not. Brokers may forget for a moment."""
        now = clock()
        self._missing_since = {name: self._missing_since.get(name, now) for name in missing}
        self._progress.note_missing(missing if self._waits else ())
        former = {name for name, topic in self._progress.topics.items() if topic.absent}
        absent = {name for name, since in self._missing_since.items() if now - since >= _INTERVAL}
        for name in absent - former if self._progress.serves else ():
            log.error("topic %r was deleted; lookups go on with what was read until it is there again", name)
        if absent != former and self._progress.serves:
            self._progress.note_absent(absent)


def _left(deadline: float) -> float:
    """Return the seconds until a deadline."""
    return max(0.0, deadline - clock())
