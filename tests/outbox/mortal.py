"""A relay in a process of its own that a signal hits at one step of a Kafka transaction: killed there, or frozen.

    python -m tests.outbox.mortal POSTGRES BOOTSTRAP [STEP SIGNAL [BATCH]]

The signal comes at the step of the second transaction that the process begins, and only once. Without a step it lives.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from compactory.kafka.client import Kafka
from compactory_connectors.outbox import OutboxRelay, relay, statements

STEPS = ("before begin", "before sending", "before commit", "after commit")
"""``before sending``: the client has it all, Kafka nothing. ``after commit``: Postgres does not know yet."""

BATCH = 5


class Fate:
    def __init__(self, step: str, sign: signal.Signals) -> None:
        self._step, self._sign = step, sign
        self.transactions = 0

    def meets(self, step: str) -> None:
        if step == self._step and self.transactions >= 2:
            self._step = ""
            os.kill(os.getpid(), self._sign)


class Producer:
    """The client's producer, watched."""

    def __init__(self, inner: Any, fate: Fate) -> None:
        self._inner, self._fate = inner, fate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def begin_transaction(self) -> None:
        self._fate.transactions += 1
        self._fate.meets("before begin")
        self._inner.begin_transaction()

    def commit_transaction(self, timeout: float) -> None:
        self._fate.meets("before sending")
        self._inner.flush()
        self._fate.meets("before commit")
        self._inner.commit_transaction(timeout)
        self._fate.meets("after commit")


def main(url: str, bootstrap: str, step: str = "", sign: str = "SIGKILL", batch: str = str(BATCH)) -> int:
    fate = Fate(step, signal.Signals[sign])
    produce = Kafka.producer

    def watched(kafka: Kafka, defaults: Any, own: Any, *given: Any) -> Any:
        late = {"linger.ms": 5_000} if step == "before sending" else {}
        return Producer(produce(kafka, defaults, own | late, *given), fate)

    Kafka.producer = watched  # type: ignore[method-assign]
    for module in (relay, statements):
        module.TTL = module.PAUSE = 1.0  # type: ignore[misc,attr-defined]
    relay._RENEW_EVERY = 0.2
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with OutboxRelay(url, bootstrap, threads=2, batch=int(batch)):
        stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
