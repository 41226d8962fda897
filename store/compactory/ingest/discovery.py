"""The thread that asks the cluster for the partitions, end offsets and ids of the topics that a store reads."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from threading import Event, Lock
from typing import Literal

from compactory.clock import clock
from compactory.errors import CompactoryError, ConfigError, StoreClosed, Unreachable
from compactory.ingest.generations import Generations
from compactory.ingest.progress import Progress
from compactory.ingest.rebuild_rules import TopicLog, missed_tombstones, needed_rebuild, truncation
from compactory.ingest.topic_config import TopicPolicies
from compactory.kafka.client import Kafka
from compactory.records import Partition, Rebuild, RebuildCause, StoreState, Topic
from compactory.threads import StoppableThread

__all__ = ["Discovery"]

log = logging.getLogger("compactory.store")

_INTERVAL = 2.0  # seconds; a new partition is found within two of them
_REMEDY = "create it with cleanup.policy=compact, let a source do so, or wait for it (missing_topic = wait)"


class Discovery:
    """Enters partitions and end offsets in `Progress`, and demands a rebuild if a topic is not the one that was read.

    Its thread refreshes them every two seconds between start and stop; any thread may call `high_watermarks`, which
    refreshes them too. An unreachable broker changes nothing.
    """

    def __init__(
        self,
        kafka: Kafka,
        generations: Generations,
        progress: Progress,
        missing_topic: Literal["fail", "wait"],
    ) -> None:
        self.topics: dict[str, Topic] = {}
        self.cluster_id: str | None = None
        self._kafka = kafka
        self._generations = generations
        self._names = sorted(progress.topics)
        self._progress = progress
        self._waits_for_topics = missing_topic == "wait"
        self._policies = TopicPolicies(kafka)
        self._missing_since: dict[str, float] = {}
        self._short_since: dict[Partition, float] = {}  # partitions that end before our position
        self._refreshing = Lock()  # one refresh at a time; guards all of the above
        self._notify = Event()
        self._thread = StoppableThread("discovery")

    def open(self, timeout: float) -> None:
        """Ask the cluster for the first time. Raises ConfigError with every topic that does not exist, Unreachable."""
        deadline = clock() + timeout
        self.cluster_id = self._kafka.cluster_id(timeout)
        topics = self._kafka.topics(self._names, _until(deadline))
        missing = [name for name in self._names if name not in topics]
        if missing and not self._waits_for_topics:
            raise ConfigError(self._kafka.absence(name, _REMEDY, _until(deadline)) for name in missing)
        if missing:
            log.warning("waiting for topics that do not exist: %s", ", ".join(missing))
            self._progress.note_missing(missing)
        if topics:
            with self._refreshing:
                self._refresh(_until(deadline))

    def high_watermarks(self, timeout: float) -> dict[Partition, int]:
        """Return the high watermarks of all partitions, after adding new partitions to `Progress`.

        Raises Unreachable, also if the cluster does not know one of the topics, or if callers that ask at the same time
        get no answer either; StoreFailed or StoreClosed if the store ends meanwhile.
        """
        deadline = clock() + timeout
        while True:
            try:
                ends, missing = self._refresh_alone(min(max(deadline - clock(), 0.0), _INTERVAL))
                break
            except Unreachable:
                self._progress.raise_end()
                if clock() >= deadline:
                    raise
        if missing is not None:
            raise Unreachable("Kafka", f"Kafka at {self._kafka.bootstrap} does not know topic {missing!r} at present")
        return ends

    def start(self) -> None:
        """Refresh every two seconds from now on, and whenever `wake` is called."""
        self._thread.start(self._run)

    def wake(self) -> None:
        """Wake the thread to refresh at once."""
        self._notify.set()

    def stop(self) -> None:
        """End the thread and wait for it. Safe to call twice, before start and by the thread itself."""
        self._thread.stopping.set()
        self._notify.set()
        self._thread.stop()

    def still_the_same(self, topics: Collection[str]) -> bool:
        """Return True if the topics are those that were read, or if Kafka does not answer.

        False if one is another topic, whose rebuild is demanded then, or while another refresh takes long.
        """
        if not self._refreshing.acquire(timeout=_INTERVAL):
            return False
        try:
            described = self._kafka.topics(topics, _INTERVAL)
            renewed = [name for name in topics if name in described and self._note_topic(described[name])]
        except CompactoryError:
            return True
        finally:
            self._refreshing.release()
        return not renewed

    def retention(self, topic: str) -> float:
        """Return the seconds for which tombstones of a topic are kept at least."""
        return self._policies.retention(topic)

    def _run(self) -> None:
        logged_problem = ""  # the type of an outage, whose texts differ; the text of another problem
        while self._wait():
            try:
                self._refresh_alone(_INTERVAL)
                logged_problem = ""
            except StoreClosed:
                return
            except CompactoryError as error:
                is_refusal = isinstance(error, ConfigError)
                if is_refusal and self._progress.state is StoreState.LOADING:
                    self._progress.move(StoreState.FAILED, error)
                    return
                problem = str(error) if is_refusal else type(error).__name__
                if problem != logged_problem:
                    level = logging.ERROR if is_refusal else logging.WARNING
                    log.log(level, "%s; lookups go on, trying again every %g s", error, _INTERVAL)
                logged_problem = problem
            except Exception:  # of any kind: a store whose discovery has died would never hear of a change
                log.exception("asking the cluster failed; lookups go on, trying again every %g s", _INTERVAL)

    def _wait(self) -> bool:
        """Wait until the next refresh is due. Return False if the thread has to end."""
        self._notify.wait(_INTERVAL)
        self._notify.clear()
        return not self._thread.stopping.is_set()

    def _refresh_alone(self, timeout: float) -> tuple[dict[Partition, int], str | None]:
        """Refresh as soon as no other thread does. Return the high watermarks, and a topic that is missing."""
        deadline = clock() + timeout
        if not self._refreshing.acquire(timeout=timeout):
            raise Unreachable("Kafka", f"Kafka at {self._kafka.bootstrap} has not answered an earlier request yet")
        try:
            return self._refresh(_until(deadline)), min(self._missing_since, default=None)
        finally:
            self._refreshing.release()

    def _refresh(self, timeout: float) -> dict[Partition, int]:
        """Ask the cluster, under the lock; return the high watermarks."""
        deadline = clock() + timeout
        generations = self._progress.generations()  # before Kafka is asked
        if self.cluster_id is None:
            self.cluster_id = self._kafka.cluster_id(timeout)
        topics = self._kafka.topics(self._names, _until(deadline))
        renewed = {name for name, topic in topics.items() if self._note_topic(topic)}
        self._note_missing([name for name in self._names if name not in topics])
        self._policies.refresh(topics, _until(deadline))
        partitions = [partition for topic in topics.values() for partition in topic.all()]
        positions = self._progress.reading_positions()
        asked_at = clock()
        ends = self._kafka.high_watermarks(partitions, _until(deadline))
        self._compare(positions, {part: end for part, end in ends.items() if part.topic not in renewed}, asked_at)
        added = [partition for partition in ends if partition not in positions]
        if added:
            log_starts = self._kafka.log_starts(added, _until(deadline))
            self._add_partitions(topics, log_starts, ends, generations)
        self._progress.note_ends(ends, asked_at)
        return ends

    def _note_topic(self, topic: Topic) -> bool:
        """Keep the description of a topic. Return True if it is another topic than before; demand a rebuild then."""
        former = self.topics.get(topic.name)
        is_renewed = bool(former and former.topic_id and topic.topic_id and former.topic_id != topic.topic_id)
        if former is not None and is_renewed:
            detail = f"it was deleted and created again (topic id {former.topic_id}, now {topic.topic_id})"
            self._progress.demand(topic.name, Rebuild(RebuildCause.RECREATED, detail))
        self.topics[topic.name] = topic  # last: a token of the new topic must not meet positions of the former one
        return is_renewed

    def _add_partitions(
        self,
        topics: Mapping[str, Topic],
        log_starts: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        generations: Mapping[str, int],
    ) -> None:
        """Add new partitions to `Progress`: from their log starts, or from a checkpoint that can be resumed.

        A topic that must be read again is demanded here, and not added before its next generation begins.
        """
        positions = dict(log_starts)
        for name in {partition.topic for partition in log_starts}:
            tables = self._generations.reading[name]
            checkpoint = tables.opened_checkpoint()
            if checkpoint is None or self._progress.topics[name].positions:
                continue
            log_now = TopicLog(topics[name], self.cluster_id, log_starts, ends, self.retention(name), time.time())
            rebuild = needed_rebuild(checkpoint, tables.definition, log_now)
            if rebuild is not None:
                self._progress.demand(name, rebuild)
                continue
            tables.forget_epochs_before(log_starts)
            positions |= {Partition(name, number): offset for number, offset in checkpoint.positions.items()}
            self._progress.resume(name, checkpoint)
        topic_ids = {name: topic.topic_id for name, topic in topics.items()}
        self._progress.add_partitions(positions, ends, generations, topic_ids)

    def _compare(self, positions: Mapping[Partition, int], ends: Mapping[Partition, int], asked_at: float) -> None:
        """Demand a rebuild if a log ends before our position, or if we were not at its end for too long."""
        marks = self._progress.caught_up()
        short = {part: end for part, end in ends.items() if end < positions.get(part, 0)}
        self._short_since = {part: self._short_since.get(part, asked_at) for part in short}
        for part, end in short.items():
            if asked_at - self._short_since[part] >= _INTERVAL:  # a new leader may not know the end at once
                self._progress.demand(part.topic, truncation(part, positions[part], end))
        if self._progress.state is StoreState.LOADING:
            return
        for part, end in ends.items():
            if part in positions and part in marks and not self._progress.topics[part.topic].is_hidden:
                rebuild = missed_tombstones(part, marks[part], end, asked_at, self.retention(part.topic))
                if rebuild is not None:
                    self._progress.demand(part.topic, rebuild)

    def _note_missing(self, missing: list[str]) -> None:
        """Keep which topics are missing. A topic is absent after an interval: brokers may forget it for a moment."""
        asked_at = clock()
        self._missing_since = {name: self._missing_since.get(name, asked_at) for name in missing}
        self._progress.note_missing(missing if self._waits_for_topics else ())
        former = {name for name, topic in self._progress.topics.items() if topic.is_absent}
        absent = {name for name, since in self._missing_since.items() if asked_at - since >= _INTERVAL}
        if absent == former or not self._progress.serves:
            return
        for name in absent - former:
            log.error("topic %r was deleted; lookups go on with what was read until it is there again", name)
        self._progress.note_absent(absent)


def _until(deadline: float) -> float:
    """Return the seconds until a deadline."""
    return max(0.0, deadline - clock())
