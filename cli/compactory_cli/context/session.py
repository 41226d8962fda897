"""The start of every command: configuration, logging, connectors, a connection; and all problems at once.

Importing this module is fast, so all commands import it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar, overload

import typer

from compactory.errors import ConfigError

from ..views.terminal import warn
from .flags import LogLevel, given_flags, option

if TYPE_CHECKING:
    import psycopg

    from compactory_connectors.source.config.connector import ConnectorConfig

    from .configuration import Configuration

__all__ = [
    "Problems",
    "Providers",
    "all_of",
    "begin",
    "begin_source",
    "confirm",
    "connected",
    "load_connectors",
    "provider_files",
    "refuse",
]

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")

Providers = Annotated[list[str] | None, option("--provider", "NAME=FILE", "File with values of ${NAME:…}; repeatable.")]


def begin(log_level: LogLevel = LogLevel.WARNING) -> Configuration:
    """Load the configuration and send log lines to stderr, from ``log_level`` on unless the user says otherwise.

    Raises ConfigError with every problem found.
    """
    from .configuration import load_configuration
    from .logging import configure_logging

    configuration = load_configuration(given_flags())
    configure_logging(configuration, log_level)
    return configuration


def begin_source(log_level: LogLevel = LogLevel.WARNING) -> Configuration:
    """Begin a command on connectors: warn that --postgres does not name their database."""
    if given_flags().postgres is not None:
        warn("--postgres is not used: a source connects to connection.url of its connector")
    return begin(log_level)


def refuse(problems: str | Iterable[str]) -> NoReturn:
    """Raise ConfigError for wrong arguments or settings."""
    raise ConfigError(problems)


def confirm(question: str, refusal: str | None = None) -> None:
    """Ask on a terminal. Elsewhere raise ConfigError with ``refusal``, or go on without one."""
    if sys.stdin.isatty():
        typer.confirm(question, abort=True, err=True)
    elif refusal is not None:
        refuse(refusal)


class Problems:
    """Runs checks and keeps the problems of those that fail, so that a user sees all at once."""

    def __init__(self) -> None:
        self._problems: list[str] = []

    def of(self, check: Callable[[], A]) -> A | None:
        """Return the result of the check, or None if it raised ConfigError."""
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


def load_connectors(paths: Iterable[Path], providers: Sequence[str]) -> list[ConnectorConfig]:
    """Return the connectors of these files. Raises ConfigError with the problems of all."""
    paths = list(paths)
    if not paths:
        return []  # without the slow import below
    from compactory_connectors.source.config import files as files_of

    problems = Problems()
    files = problems.of(partial(provider_files, providers)) or {}
    connectors_of_files = [problems.of(partial(files_of.load_connectors, path, files)) or [] for path in paths]
    loaded = [connector for connectors in connectors_of_files for connector in connectors]
    names = [connector.name for connector in loaded]
    twice = sorted({name for name in names if names.count(name) > 1})
    problems.add(f"two connectors are named {name!r}: each would stop the other; rename one" for name in twice)
    problems.raise_any()
    return loaded


def provider_files(providers: Sequence[str]) -> dict[str, Path]:
    """Return the files of ``--provider NAME=FILE`` by name. Raises ConfigError."""
    files: dict[str, Path] = {}
    for text in providers:
        name, equals, path = text.partition("=")
        if not name or not equals or not path:
            refuse(f"--provider {text}: must be NAME=FILE, such as tpp=secrets.properties")
        files[name] = Path(path)
    return files


@contextmanager
def connected(
    connect: Callable[[Mapping[str, Any], str], psycopg.Connection[Any]] | None = None,
) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection in autocommit to the configured database, opened by ``connect`` if given."""
    from compactory_connectors.postgres.postgres_errors import postgres_errors

    postgres = begin().postgres()
    with postgres_errors(postgres), closing((connect or _connect)(postgres.conninfo, "command")) as connection:
        yield connection


def _connect(conninfo: Mapping[str, Any], _purpose: str) -> psycopg.Connection[Any]:
    import psycopg

    parameters: dict[str, Any] = {"connect_timeout": 10, "application_name": "compactory-sql", **conninfo}
    return psycopg.connect(**parameters, autocommit=True)
