"""`ProcessRunner`: a thread that reads a processor's topic, and threads that call its function."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any
from uuid import uuid4

import structlog

from compactory.errors import CompactoryError, ConfigError, StartTimeout, Unreachable
from compactory.kafka.client import Kafka
from compactory.records import Partition
from compactory_connectors.consumer.background import Background
from compactory_connectors.database.backoff import Backoff
from compactory_connectors.source.publish.publisher import Publisher

from .membership import KeptEvents, Members
from .pending import LARGEST, group_of
from .processor import Processor
from .work import Work
from .worker import Board

__all__ = ["ProcessRunner"]

log = structlog.get_logger("compactory.process")

_BEAT = 1.0  # seconds between looks for what an operator wants tried again


class ProcessRunner(Background):
    """Runs one processor. Thread-safe; start it once. Any number may run, in any processes, beside each other.

    What a function returns is written in a Kafka transaction with the offset of its event: once, whatever dies.
    """

    def __init__(self, kafka: str | Mapping[str, Any] | Kafka, processor: Processor) -> None:
        super().__init__(f"process-{processor.name}")
        self.processor = processor
        self.board = Board()
        self._kafka = kafka if isinstance(kafka, Kafka) else Kafka(kafka)
        self._id = f"process-{processor.name}-{uuid4().hex[:12]}"

    def _check(self) -> None:
        chosen = self.processor
        outcomes = [topic for topic in (chosen.created, chosen.failed) if topic is not None]
        missing = {chosen.topic, *outcomes} - set(self._kafka.topics([chosen.topic, *outcomes]))
        problems = [f"topic {topic!r} does not exist; create it" for topic in sorted(missing)]
        needed = (([chosen.topic], ["Read"]), (outcomes, ["Write"]), ([group_of(chosen.name)], ["Read", "Write"]))
        for topics, operations in needed:
            problems += self._kafka.lacking_rights(topics, operations)
        if problems:
            raise ConfigError(problems)

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                threads = ThreadPoolExecutor(self.processor.concurrency, f"compactory-{self.processor.name}")
                stack.callback(threads.shutdown, wait=False, cancel_futures=True)
                kept = stack.enter_context(self._kept())
                group = stack.enter_context(closing(Members(self._kafka, self.processor)))
                self._live(group, kept, threads)
        except CompactoryError as error:
            self._ended(error)
        except Exception as error:
            log.exception("processor failed", processor=self.processor.name)
            self._ended(CompactoryError(f"processor {self.processor.name!r} failed: {type(error).__name__}"))

    @contextmanager
    def _kept(self) -> Iterator[KeptEvents]:
        """Return the topic of events that are not done, once it is there and read."""
        backoff = Backoff()
        while True:
            with closing(KeptEvents(self._kafka, self.processor.name)) as kept:
                try:
                    kept.start()
                except (Unreachable, StartTimeout) as error:
                    self._note(error)
                    if self._stop.wait(backoff.pause()):
                        raise
                    continue
                yield kept
                return

    def _live(self, group: Members, kept: KeptEvents, threads: ThreadPoolExecutor) -> None:
        """Work; begin anew with back-off, within the group, where Kafka was lost or the group went on without us."""
        backoff, pause = Backoff(), 0.0
        while not self._stop.is_set():
            self._idle(group, pause)
            publisher = Publisher(
                self._kafka, self._id, kept.topic, overrides={"message.max.bytes": LARGEST}, timeout=9.0, longest=10.0
            )
            work = Work(self.processor, group, kept, publisher, threads, self.board)
            try:
                publisher.open()
                group.attach(lambda partitions: _located(group, kept, partitions))
                self._work(work, backoff)
            except Unreachable as error:
                self._note(error)
                pause = backoff.pause()
            finally:
                group.detach()
                publisher.abort()
                publisher.close()

    def _work(self, work: Work, backoff: Backoff) -> None:
        beat = time.monotonic() + _BEAT
        while not self._stop.is_set():
            if work.turn():
                backoff.reset()
            if time.monotonic() >= beat:
                work.look_around()
                beat = time.monotonic() + _BEAT
        work.finish()

    def _note(self, error: CompactoryError) -> None:
        self.board.error = str(error)
        log.warning("nothing is processed for now", processor=self.processor.name, error=" ".join(str(error).split()))

    def _ended(self, error: CompactoryError) -> None:
        self.failure = error
        self._note(error)


def _located(group: Members, kept: KeptEvents, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """Return where partitions go on. Read their kept events after that: no transaction can add to them then."""
    located = group.locate(partitions)
    kept.read_to_the_end()
    return located
