"""Cleaning up after dropped objects: in a thread of its own, and never in a forked child."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from threading import Thread, main_thread
from types import MethodType
from typing import Any, cast
from weakref import WeakKeyDictionary

__all__ = ["apart", "in_forked_children", "keep_forever"]


def apart(name: str, function: Callable[..., object], *arguments: Any) -> Thread | None:
    """Call a function in a thread of its own, and return the thread; at once where the interpreter ends."""
    if not main_thread().is_alive():  # no thread can be started any more
        function(*arguments)
        return None
    thread = Thread(target=function, args=arguments, name=f"compactory-{name}", daemon=True)
    thread.start()
    return thread


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
