"""Callables of a user that our threads call: an error of theirs ends no thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Contained", "contained_callbacks"]

log = logging.getLogger("compactory.store")

_CALLBACKS = ("error_cb", "stats_cb", "throttle_cb")  # of the Kafka client; oauth_cb has errors of its own


class Contained:
    """A callable whose errors are logged, the first of them, and never raised. Thread-safe if the callable is.

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
