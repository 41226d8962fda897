"""`ProcessRunner`: a thread that reads a processor's topic, and threads that call its function."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from typing import Any
from uuid import uuid4

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.group_worker import GroupThread
from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.loop_thread import LoopThread

from .membership import KeptEvents, Members
from .pending import LARGEST, group_of
from .processor import Processor
from .work import Work
from .worker import Board

__all__ = ["ProcessRunner"]

_BEAT = 1.0  # seconds between looks for what an operator wants tried again
_CHECK = 5.0  # seconds between looks whether the topic is still the same


class ProcessRunner(GroupThread[Members]):
    """Runs one processor. Thread-safe; start it once. Any number may run, in any processes, beside each other.

    What a function returns is written in a Kafka transaction with the offset of its event: once, whatever dies.
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

    def _join(self) -> Members:
        return Members(self._kafka, self.processor)

    def _run(self) -> None:
        self._loop.start()
        try:
            super()._run()
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._loop.stop()

    def _live(self, group: Members, worked: Callable[[], None]) -> None:
        with ExitStack() as stack:
            kept = stack.enter_context(closing(KeptEvents(self._kafka, self.processor.name)))
            publisher = Publisher(self._kafka, self._id, kept.topic, overrides={"message.max.bytes": LARGEST})
            stack.callback(publisher.close)
            stack.callback(publisher.abort)
            kept.start()
            publisher.open()
            group.attach(partial(group.locate, kept))
            chosen = self.processor
            work = Work(chosen, chosen.decoder(), group, kept, publisher, self._threads, self._loop, self.board)
            beat = check = time.monotonic() + _BEAT
            while not self._stop.is_set():
                if work.turn():
                    worked()
                if time.monotonic() >= beat:
                    work.look_around()
                    beat = time.monotonic() + _BEAT
                if time.monotonic() >= check:
                    group.check_topic()
                    check = time.monotonic() + _CHECK
            work.finish()
