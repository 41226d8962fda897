"""The signals that end a command which runs until it is told to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["stopping"]


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set; the second signal ends the process as it would have without us."""
    stop = threading.Event()
    before = {sign: signal.getsignal(sign) for sign in (signal.SIGTERM, signal.SIGINT)}

    def ask(sign: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(sign, before[signal.Signals(sign)])

    for sign in before:
        signal.signal(sign, ask)
    try:
        yield stop
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)
