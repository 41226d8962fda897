"""A thread with a stop that is safe at any moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Lock, Thread, current_thread

__all__ = ["StoppableThread"]

_BEGINNING = 1.0  # seconds that a thread takes at most to begin


class StoppableThread:
    """A daemon thread that ends soon after ``stopping`` is set. For any thread."""

    def __init__(self, name: str) -> None:
        self.stopping = Event()
        self._name = name
        self._starting = Lock()  # guards _thread: a store may be closed while it starts
        self._thread: Thread | None = None

    @property
    def running(self) -> bool:
        """Whether the thread was started."""
        return self._thread is not None

    def start(self, run: Callable[[], None]) -> None:
        """Start the thread, unless `stop` was called before."""
        with self._starting:
            if not self.stopping.is_set():
                self._thread = Thread(target=run, name=f"compactory-{self._name}", daemon=True)
                self._thread.start()  # a signal's handler may raise in it, and the thread runs all the same

    def stop(self) -> None:
        """End the thread and wait for it. Safe to call twice, before start and by the thread itself."""
        self.stopping.set()
        with self._starting:
            thread = self._thread
        if thread is not None and thread is not current_thread():
            _join(thread)


def _join(thread: Thread) -> None:
    """Wait for a thread's end; for a moment also for its beginning, where a signal has cut its start off."""
    until = time.monotonic() + _BEGINNING
    while True:
        try:
            thread.join()
        except RuntimeError:
            if time.monotonic() > until:
                return
            time.sleep(0.001)
        else:
            return
