"""A sink in a process of its own that a signal hits at one step of a transaction: killed there, or frozen.

    python -m tests.sink.mortal POSTGRES BOOTSTRAP NAME TOPIC [STEP SIGNAL [PROPERTY=VALUE…]]

The signal comes at the step of the second transaction that the process begins, and only once. Without a step it lives.
The property ``batch`` is the sink's own.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from compactory_connectors.kafka.consumer_group import Group
from compactory_connectors.sink import TransactionalSink
from compactory_connectors.sink.applying import Applying
from compactory_connectors.sink.statements import SinkTable
from tests.sink import harness

STEPS = ("before the lock", "after the lock", "before the move", "before the commit", "after the commit")

BETWEEN = "between transactions"
"""With the next records in hand; no time-out of the server ends that session."""

BATCH = 5


class Fate:
    def __init__(self, step: str, sign: signal.Signals) -> None:
        self._step, self._sign = step, sign
        self.transactions = 0

    def meets(self, step: str) -> None:
        if step and step == self._step and self.transactions >= 2:
            self._step = ""
            os.kill(os.getpid(), self._sign)


def _around(fate: Fate, function: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
    def watched(*arguments: Any, **named: Any) -> Any:
        if before == STEPS[0]:
            fate.transactions += 1
        fate.meets(before)
        found = function(*arguments, **named)
        fate.meets(after)
        return found

    return watched


def main(url: str, bootstrap: str, name: str, topic: str, step: str = "", sign: str = "SIGKILL", *given: str) -> int:
    fate = Fate(step, signal.Signals[sign])
    SinkTable.lock = _around(fate, SinkTable.lock, STEPS[0], STEPS[1])  # type: ignore[method-assign]
    SinkTable.move = _around(fate, SinkTable.move, STEPS[2], STEPS[3])  # type: ignore[method-assign]
    Applying.apply = _around(fate, Applying.apply, BETWEEN, "")  # type: ignore[method-assign]
    Group.advance = _around(fate, Group.advance, STEPS[4], "")  # type: ignore[method-assign]
    properties = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500", "max.poll.interval.ms": "6000"}
    properties |= dict(item.split("=", 1) for item in given)
    batch = int(properties.pop("batch", BATCH))
    sink = TransactionalSink(
        bootstrap,
        url,
        [topic],
        harness.count,
        name=name,
        batch=batch,
        transaction_timeout=3.0,
        properties=properties,
    )
    signal.signal(signal.SIGTERM, lambda *_: sink.stop())
    with sink:
        sink.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
