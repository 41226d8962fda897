"""A processor in a process of its own that a signal hits at one step: killed there, or frozen.

    python -m tests.processors.mortal BOOTSTRAP NAME TOPIC CREATED FAILED BOOK [STEP SIGNAL]

The signal comes in the second transaction that carries outputs, and once. Without a step the process lives.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.processors import ProcessRunner
from compactory_connectors.processors.membership import ProcessorGroup
from compactory_connectors.processors.work import Work
from tests.processors.harness import registration

STEPS = ("in the function", "before the transaction", "before the offsets", "before the commit", "after the commit")


class Fate:
    def __init__(self, step: str, sign: signal.Signals) -> None:
        self._step, self._sign = step, sign
        self.transactions = 0

    def meets(self, step: str) -> None:
        if step == self._step and self.transactions >= 1:
            self._step = ""
            os.kill(os.getpid(), self._sign)


def main(bootstrap: str, name: str, topic: str, created: str, failed: str, book: str, *fated: str) -> int:
    fate = Fate(fated[0], signal.Signals[fated[1]]) if fated else Fate("", signal.SIGKILL)
    call, transact, send_offsets = Work._call, Publisher.transact, ProcessorGroup.send_offsets

    def calling(self: Work, *given: Any) -> None:
        call(self, *given)
        fate.meets("in the function")

    def transacting(self: Publisher, *given: Any) -> None:
        fate.meets("before the transaction")
        transact(self, *given)
        fate.meets("after the commit")
        fate.transactions += 1

    def sending(self: ProcessorGroup, *given: Any) -> None:
        fate.meets("before the offsets")
        send_offsets(self, *given)
        fate.meets("before the commit")

    Work._call, Publisher.transact = calling, transacting  # type: ignore[method-assign]
    ProcessorGroup.send_offsets = sending  # type: ignore[method-assign]
    settings = {"bootstrap.servers": bootstrap, "session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
    runner = ProcessRunner(settings, registration(name, topic, created, failed, book, concurrency=2))
    signal.signal(signal.SIGTERM, lambda *_: runner.stop())
    with runner:
        runner.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
