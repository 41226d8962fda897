"""The beginning of every command: configuration loaded, logging set up, problems gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from compactory.errors import ConfigError

from .configuration import Configuration, load
from .flags import Flags, LogLevel
from .logging import configure_logging

__all__ = ["Problems", "begin"]

T = TypeVar("T")


def begin(flags: Flags, log_level: LogLevel = LogLevel.WARNING) -> Configuration:
    """Load the configuration and send log lines to stderr, from ``log_level`` on unless the user says otherwise.

    Raises ConfigError with every problem found.
    """
    configuration = load(flags)
    configure_logging(configuration, log_level)
    return configuration


class Problems:
    """Runs checks and keeps the problems of those that fail, so that a user sees all of them at once."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def of(self, check: Callable[[], T]) -> T | None:
        """The result of the check, or None when it raised ConfigError."""
        try:
            return check()
        except ConfigError as error:
            self._found += error.problems
            return None

    def add(self, problems: Iterable[str]) -> None:
        """Keep further problems."""
        self._found += problems

    def raise_any(self) -> None:
        """Raise ConfigError with all problems, each once; nothing when there are none."""
        if self._found:
            raise ConfigError(dict.fromkeys(self._found))
