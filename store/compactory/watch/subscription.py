"""A callback for the changes of a directory, called in its own thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from compactory.callbacks import Contained
from compactory.errors import ConfigError, StoreClosed, StoreFailed, WatchExpired
from compactory.stoppable_thread import StoppableThread
from compactory.watch.change import Change, Cursor
from compactory.watch.watch import Watch

__all__ = ["ChangeSubscription"]

log = logging.getLogger("compactory.store")


class ChangeSubscription:
    """Calls a callback with each change of a directory, until it is closed or the store ends.

    The first error of the callback is logged, and the next change comes. If changes are missing (WatchExpired),
    ``on_expired`` is called with the error; without it the log has a warning. Then the error's cursor is watched.
    """

    def __init__(
        self,
        name: str,
        watch: Callable[[Cursor | None], Watch[Any]],
        callback: Callable[[Change[Any]], object],
        since: Cursor | None,
        on_expired: Callable[[WatchExpired], object] | None,
    ) -> None:
        functions: dict[str, Any] = {"callback": callback, "on_expired": on_expired or self._log_expired}
        for option, function in functions.items():
            if not callable(function) or iscoroutinefunction(function):
                raise ConfigError(f"on_change: {option} must be a function, not {function!r}; coroutines take watch()")
        self._name, self._open_watch = name, watch
        self._callback = Contained(f"a callback of on_change of {name!r}", callback)
        self._on_expired = Contained("on_expired", on_expired or self._log_expired)
        self._watch: Watch[Any] = watch(since)
        self._thread = StoppableThread("changes")
        self._thread.start(self._run)

    def close(self) -> None:
        """Stop calling the callback. Waits for a running call, unless the callback itself calls this."""
        self._thread.stopping.set()
        self._watch.close()
        self._thread.stop()

    def _run(self) -> None:
        expired: WatchExpired | None = None
        while not self._thread.stopping.is_set():
            try:
                if expired is not None:
                    self._watch, expired = self._open_watch(expired.cursor), None
                    continue  # the subscription may have been closed meanwhile
                for change in self._watch:
                    self._callback(change)
            except WatchExpired as error:
                expired = error
                self._on_expired(error)
            except StoreClosed:
                return
            except StoreFailed as error:
                log.error("no more changes of directory %s: %s", self._name, error)
                return

    def _log_expired(self, error: WatchExpired) -> None:
        log.warning("on_change of directory %s: changes are missed: %s", self._name, error)
