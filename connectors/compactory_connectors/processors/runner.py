"""`ProcessRunner`: a thread that reads a processor's topic, and threads that call its function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from typing import Any
from uuid import uuid4

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory_connectors.backoff import Interval
from compactory_connectors.kafka.group_worker import GroupThread
from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.loop_thread import LoopThread

from .membership import ProcessorGroup, StoredEvents
from .pending import LARGEST, group_of
from .processor import Processor
from .status import Board
from .work import Work

__all__ = ["ProcessRunner"]

_BEAT_EVERY = 1.0  # seconds; retries that operators want, figures
_CHECK_EVERY = 5.0  # seconds; a topic that was created again


class ProcessRunner(GroupThread[ProcessorGroup]):
    """Runs one processor. Thread-safe; start it once. Any number of runners may run side by side.

    The outputs of a function are written in one Kafka transaction with the offset of the event, so exactly once.
    """

    def __init__(self, kafka: str | Mapping[str, Any] | Kafka, processor: Processor) -> None:
        super().__init__("process", processor.name)
        self.processor = processor
        self.board = Board()
        self._kafka = kafka if isinstance(kafka, Kafka) else Kafka(kafka)
        self._threads = ThreadPoolExecutor(processor.concurrency, f"compactory-{processor.name}")
        self._loop = LoopThread(f"compactory-{processor.name}-async")
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

    def _join(self) -> ProcessorGroup:
        return ProcessorGroup(self._kafka, self.processor)

    def _run(self) -> None:
        self._loop.start()
        try:
            super()._run()
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._loop.stop()

    def _live(self, group: ProcessorGroup, worked: Callable[[], None]) -> None:
        with ExitStack() as stack:
            stored_events = stack.enter_context(closing(StoredEvents(self._kafka, self.processor.name)))
            publisher = Publisher(self._kafka, self._id, stored_events.topic, overrides={"message.max.bytes": LARGEST})
            stack.callback(publisher.close)
            stack.callback(publisher.abort)
            stored_events.start()
            publisher.open()
            group.attach(partial(group.locate, stored_events))
            work = Work(self.processor, group, stored_events, publisher, self._threads, self._loop, self.board)
            beat, check = Interval(_BEAT_EVERY), Interval(_CHECK_EVERY)
            while not self._stop.is_set():
                if work.run_round():
                    worked()
                if beat.is_over():
                    work.beat()
                if check.is_over():
                    group.check_topic()
            work.finish()
