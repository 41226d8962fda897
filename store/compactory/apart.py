"""Work of finalizers, which run in whichever thread lets go last: an event loop must not wait for it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread, main_thread
from typing import Any

__all__ = ["apart"]


def apart(name: str, function: Callable[..., object], *arguments: Any) -> Thread | None:
    """Call a function in a thread of its own, and return the thread; at once where the interpreter ends."""
    if not main_thread().is_alive():  # no thread can be started any more
        function(*arguments)
        return None
    thread = Thread(target=function, args=arguments, name=f"compactory-{name}", daemon=True)
    thread.start()
    return thread
