"""Problems of several checks gathered, so that a user sees all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from compactory.errors import ConfigError

__all__ = ["Problems"]

T = TypeVar("T")


class Problems:
    """Runs checks and keeps the problems of those that fail."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def of(self, check: Callable[[], T]) -> T | None:
        """What the check returns, or None when it raised ConfigError."""
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
