"""A thread with a stop that is safe at any moment, and what stands in the way of threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from threading import Event, Lock, Thread, current_thread

__all__ = ["StoppableThread", "thread_problems"]

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
        """True if the thread was started."""
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


def thread_problems() -> Iterator[str]:
    """Yield a problem where threads are greenlets: one call of the Kafka client would stop all of them for ever.

    gevent and eventlet put a class of their own in the place of ``threading.Lock``.
    """
    library = type(threading.Lock()).__module__.partition(".")[0]
    if library != "_thread":
        remedy = {"gevent": "gevent.monkey.patch_all(thread=False)", "eventlet": "eventlet.monkey_patch(thread=False)"}
        call = remedy.get(library, f"{library} without threads")
        yield f"threads are patched by {library}, which the Kafka client's calls would stop for ever: patch by {call}"


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
