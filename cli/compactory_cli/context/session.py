"""The start of every command: load the configuration, set up logging, gather problems.

Importing this module is fast, so all commands import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

from .flags import LogLevel, given_flags

if TYPE_CHECKING:
    from .configuration import Configuration

__all__ = ["Problems", "all_of", "begin", "refuse"]

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


def begin(log_level: LogLevel = LogLevel.WARNING) -> Configuration:
    """Load the configuration and send log lines to stderr, from ``log_level`` on unless the user says otherwise.

    Raises ConfigError with every problem found.
    """
    from .configuration import load_configuration
    from .logging import configure_logging

    configuration = load_configuration(given_flags())
    configure_logging(configuration, log_level)
    return configuration


def refuse(problems: str | Iterable[str]) -> NoReturn:
    """Raise ConfigError for wrong arguments or settings."""
    from compactory.errors import ConfigError

    raise ConfigError(problems)


class Problems:
    """Runs checks and keeps the problems of those that fail, so that a user sees all at once."""

    def __init__(self) -> None:
        self._problems: list[str] = []

    def of(self, check: Callable[[], A]) -> A | None:
        """Return the result of the check, or None if it raised ConfigError."""
        from compactory.errors import ConfigError

        try:
            return check()
        except ConfigError as error:
            self._problems += error.problems
            return None

    def add(self, problems: Iterable[str]) -> None:
        """Keep further problems."""
        self._problems += problems

    def raise_any(self) -> None:
        """Raise ConfigError with all problems, each once, if there are any."""
        if self._problems:
            refuse(dict.fromkeys(self._problems))


@overload
def all_of(a: Callable[[], A], b: Callable[[], B], /) -> tuple[A, B]: ...
@overload
def all_of(a: Callable[[], A], b: Callable[[], B], c: Callable[[], C], /) -> tuple[A, B, C]: ...
@overload
def all_of(a: Callable[[], A], b: Callable[[], B], c: Callable[[], C], d: Callable[[], D], /) -> tuple[A, B, C, D]: ...
def all_of(*checks: Callable[[], Any]) -> tuple[Any, ...]:
    """Return the results of these checks. Raises ConfigError with the problems of all."""
    problems = Problems()
    results = tuple(map(problems.of, checks))
    problems.raise_any()
    return results
