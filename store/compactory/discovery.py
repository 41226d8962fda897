"""Asks the cluster, now and then and when told to, what there is to read: partitions, ends, topic identities."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from difflib import get_close_matches
from threading import Event, Lock, Thread, current_thread

from compactory.errors import CompactoryError, ConfigError, StoreFailed, Unreachable
from compactory.kafka import Kafka
from compactory.progress import Progress
from compactory.records import Partition, StoreState, Topic

__all__ = ["Discovery"]

log = logging.getLogger("compactory.store")

_INTERVAL = 2.0  # seconds; a new partition is found within two of them


class Discovery:
    """Keeps `Progress` informed of new partitions and of ends, and fails the store when a topic is not what it was.

    ``look`` may be called by any thread; a thread of its own calls it every two seconds between start and stop. An
    unreachable broker changes nothing.
    """

    def __init__(self, kafka: Kafka, topics: Iterable[str], progress: Progress) -> None:
        self.topics: dict[str, Topic] = {}
        self._kafka = kafka
        self._names = sorted(set(topics))
        self._progress = progress
        self._missing_since: dict[str, float] = {}
        self._looking = Lock()  # one look at a time: guards topics and _missing_since
        self._stopping = Event()
        self._thread: Thread | None = None

    def open(self, timeout: float) -> None:
        """Take the first look. Raises ConfigError naming every topic that does not exist, Unreachable."""
        found = self._kafka.topics(self._names, timeout)
        missing = [name for name in self._names if name not in found]
        if missing:
            raise ConfigError(self._missing_problems(missing, timeout))
        self.topics = found
        self.look(timeout)

    def look(self, timeout: float) -> dict[Partition, int]:
        """Return the high watermarks of all partitions, after making new ones known. Raises Unreachable."""
        with self._looking:
            found = self._kafka.topics(self._names, timeout)
            for name, topic in found.items():
                self._check_identity(topic)
                self.topics[name] = topic
            self._check_presence([name for name in self._names if name not in found])
            partitions = [partition for topic in self.topics.values() for partition in topic.all()]
            asked_at = time.monotonic()
            ends = self._kafka.high_watermarks(partitions, timeout)
            new = ends.keys() - self._progress.positions().keys()
            if new:
                self._progress.add(self._kafka.log_starts(new, timeout), ends)
            self._progress.note_ends(ends, asked_at)
            return ends

    def start(self) -> None:
        """Look every two seconds from now on."""
        self._thread = Thread(target=self._run, name="compactory-discovery", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it. Safe to call twice, before start and by the thread itself."""
        self._stopping.set()
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join()

    def _run(self) -> None:
        reachable = True
        while not self._stopping.wait(_INTERVAL):
            try:
                self.look(_INTERVAL)
            except StoreFailed as error:
                self._progress.move(StoreState.FAILED, error.cause or error)
                return
            except CompactoryError as error:
                if reachable:
                    log.warning("%s; lookups go on, trying again every %g s", error, _INTERVAL)
                reachable = False
            else:
                reachable = True

    def _check_identity(self, topic: Topic) -> None:
        known = self.topics.get(topic.name)
        if known is not None and known.topic_id != topic.topic_id and known.topic_id and topic.topic_id:
            raise StoreFailed(
                f"topic {topic.name!r} was deleted and created again (id {known.topic_id}, now {topic.topic_id}): "
                "what was read belongs to the old one; start the store anew"
            )

    def _check_presence(self, missing: list[str]) -> None:
        """Fail when a topic stays away: a broker that has just come back may not know it yet."""
        now = time.monotonic()
        self._missing_since = {name: self._missing_since.get(name, now) for name in missing}
        if not missing:
            return
        if now - min(self._missing_since.values()) < _INTERVAL:
            raise Unreachable(
                "Kafka", f"Kafka at {self._kafka.bootstrap} does not know topic {missing[0]!r} at present"
            )
        raise StoreFailed(f"topic {missing[0]!r} was deleted: create and fill it, then start the store anew")

    def _missing_problems(self, missing: list[str], timeout: float) -> list[str]:
        names = self._kafka.topic_names(timeout)
        problems = []
        for name in missing:
            near = get_close_matches(name, names, n=1, cutoff=0.75)
            hint = (
                f"did you mean {near[0]!r}?" if near else "create it with cleanup.policy=compact, or let a source do so"
            )
            problems.append(f"topic {name!r} does not exist on {self._kafka.bootstrap}: {hint}")
        return problems
