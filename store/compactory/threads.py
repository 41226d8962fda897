"""Threads: starting and stopping them, forks of their process, and callables of a user that they call."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from threading import Event, Lock, Thread, current_thread
from types import MethodType
from typing import Any, cast
from weakref import WeakKeyDictionary

__all__ = [
    "Contained",
    "StoppableThread",
    "contained_callbacks",
    "in_forked_children",
    "keep_forever",
    "start_thread",
    "thread_problems",
    "wait_for_dropped_stores",
]

log = logging.getLogger("compactory.store")

_BEGINNING = 1.0  # seconds that a thread takes at most to begin
_CALLBACKS = ("error_cb", "stats_cb", "throttle_cb")  # of the Kafka client; oauth_cb has errors of its own


def start_thread(name: str, function: Callable[..., object], *arguments: Any) -> threading.Thread | None:
    """Call a function in a thread of its own, and return the thread; at once where the interpreter ends."""
    if not threading.main_thread().is_alive():  # no thread can be started any more
        function(*arguments)
        return None
    thread = threading.Thread(target=function, args=arguments, name=f"compactory-{name}", daemon=True)
    thread.start()
    return thread


def wait_for_dropped_stores(timeout: float) -> None:
    """Wait until each store that is being closed because nothing refers to it has ended, at most so many seconds."""
    for thread in threading.enumerate():
        if thread.name == "compactory-close":
            thread.join(timeout)


def keep_forever(handle: object) -> None:
    """See to it that an object is never destroyed, not even when the interpreter ends.

    Destroying it would wait for threads that a forked child does not have.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


# by object: a set of WeakMethod prints errors if the interpreter ends before its objects do (Python 3.11)
_methods: WeakKeyDictionary[object, Callable[[Any], None]] = WeakKeyDictionary()


def in_forked_children(method: Callable[[], None]) -> None:
    """Call a bound method in each forked child, as long as its object is in use; one of each object. For any thread."""
    bound = cast("MethodType", method)
    _methods[bound.__self__] = bound.__func__


def _after_fork() -> None:
    for owner, method in list(_methods.items()):
        method(owner)


os.register_at_fork(after_in_child=_after_fork)


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


class Contained:
    """A callable that never raises: the first error is logged. Thread-safe if the wrapped callable is.

    ``first`` is called with the same arguments before it.
    """

    def __init__(self, name: str, function: Callable[..., Any], first: Callable[..., Any] | None = None) -> None:
        self.function = function
        self._name = name
        self._first = first
        self._failed = False

    def __call__(self, *arguments: Any) -> None:
        """Call the callable; its answer is dropped."""
        if self._first is not None:
            self._first(*arguments)
        try:
            self.function(*arguments)
        except (Exception, SystemExit):  # the latter would end a thread without a word
            if not self._failed:
                self._failed = True
                log.exception("%s raised; it is called on, and further errors are not logged", self._name)


def contained_callbacks(
    properties: Mapping[str, Any], on_error: Callable[..., Any] | None = None
) -> dict[str, Contained | Callable[..., Any]]:
    """Return the callbacks for a Kafka client: the user's, contained, and ``on_error`` before a user's ``error_cb``."""
    ours: dict[str, Any] = {} if on_error is None else {"error_cb": on_error}
    callbacks = {name: properties[name] for name in _CALLBACKS if callable(properties.get(name))}
    return ours | {name: Contained(name, function, ours.get(name)) for name, function in callbacks.items()}
