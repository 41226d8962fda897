"""Cleaning up after dropped objects: in a thread of its own, and never in a forked child."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from types import MethodType
from typing import Any, cast
from weakref import WeakKeyDictionary

__all__ = ["in_forked_children", "keep_forever", "start_thread", "wait_for_dropped_stores"]


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
