"""An interrupt (SIGINT, a notebook's stop button) while a command runs in Spark's JVM."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread, current_thread, main_thread
from traceback import walk_stack
from types import FrameType
from typing import Final

from pyspark.sql import SparkSession

__all__ = ["interruptible"]

_INTERVAL: Final = 0.05  # seconds between two cancellations


@contextmanager
def interruptible(spark: SparkSession) -> Iterator[None]:
    """Within the block an interrupt ends the session's jobs, and then raises KeyboardInterrupt.

    A KeyboardInterrupt within py4j closes connections, while the command goes on and starts jobs. So another thread
    cancels jobs until the block ends, and the clean-up still reaches the JVM. A second interrupt is raised at once. For
    the main thread; a program's own handler of SIGINT stays.
    """
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    ended = Event()
    canceller = Thread(target=_cancel, args=(spark, ended), daemon=True)

    def interrupt(_number: int, frame: FrameType | None) -> None:
        if canceller.ident is not None or not _is_in_py4j(frame):
            raise KeyboardInterrupt
        canceller.start()

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ended.set()
        if canceller.ident is not None:
            canceller.join()
            raise KeyboardInterrupt


def _cancel(spark: SparkSession, ended: Event) -> None:
    while not ended.wait(_INTERVAL):
        spark.interruptAll()


def _is_in_py4j(frame: FrameType | None) -> bool:
    return any(caller.f_globals["__name__"].startswith("py4j.") for caller, _line in walk_stack(frame))
