"""A source in a process of its own that a signal hits at one step of a transaction: killed there, or frozen.

    python -m tests.source.mortal CONNECTOR BOOTSTRAP STEP SIGNAL

The signal comes at the step of the second transaction that the process begins, and only once. Without a step it lives.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from compactory.errors import LeaseLost
from compactory.kafka.client import Kafka
from compactory_connectors.kafka import publisher
from compactory_connectors.source.config.files import load_connector
from compactory_connectors.source.runtime import session
from compactory_connectors.source.runtime.source import Source

STEPS = (
    "before begin", "after begin", "within records", "after records", "before commit", "after commit", "before poll",
)  # fmt: skip
"""``after commit``: Kafka has it, this process does not know yet; ``before poll``: it does."""


class Fate:
    """Sends this process a signal when a step comes whose turn it is."""

    def __init__(self, step: str, sign: signal.Signals) -> None:
        self._step, self._sign = step, sign
        self.transactions = 0

    def meets(self, step: str, *flushes: Callable[[], object]) -> None:
        """At the step: what was produced is in the log by then, so that it is an abandoned transaction's."""
        if step == self._step and self.transactions >= 2:
            self._step = ""
            for flush in flushes:
                flush()
            os.kill(os.getpid(), self._sign)


class Producer:
    """The client's producer, watched."""

    def __init__(self, inner: Any, fate: Fate) -> None:
        self._inner, self._fate, self._produced = inner, fate, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __len__(self) -> int:
        return len(self._inner)

    def begin_transaction(self) -> None:
        self._fate.transactions += 1
        self._produced = 0
        self._fate.meets("before begin")
        self._inner.begin_transaction()
        self._fate.meets("after begin")

    def produce(self, topic: str, *arguments: Any, **options: Any) -> None:
        if topic == publisher_topic:
            self._fate.meets("after records", self._inner.flush)
        self._inner.produce(topic, *arguments, **options)
        self._produced += 1
        if self._produced == 2:
            self._fate.meets("within records", self._inner.flush)

    def commit_transaction(self, timeout: float) -> None:
        self._fate.meets("before commit", self._inner.flush)
        self._inner.commit_transaction(timeout)
        self._fate.meets("after commit")


publisher_topic = "compactory-offsets"


def main(connector: Path, bootstrap: str, step: str = "", sign: str = "SIGKILL", longest: str = "") -> int:
    """Run until SIGTERM."""
    fate = Fate(step, signal.Signals[sign])
    if longest:  # a transaction may stay open for so many seconds only
        publisher._LONGEST = float(longest)
        publisher._DEFAULTS["message.timeout.ms"] = int(publisher._LONGEST * 1000)
    produce, poll = Kafka.producer, session.Session.poll_tables

    def producer(self: Kafka, *arguments: Any) -> Any:
        return Producer(produce(self, *arguments), fate)

    def round_(self: session.Session, *arguments: Any, **options: Any) -> bool:
        fate.meets("before poll")
        return poll(self, *arguments, **options)

    Kafka.producer = producer  # type: ignore[method-assign]
    session.Session.poll_tables = round_  # type: ignore[method-assign]
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stdout))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        Source(load_connector(connector), Kafka(bootstrap)).run(stop)
    except LeaseLost as error:
        print(f"LeaseLost: {error}")
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
