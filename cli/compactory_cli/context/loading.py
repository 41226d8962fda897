"""Arguments for connector files, and loading them with the problems of all files at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..views.terminal import warn
from .flags import LogLevel, argument, given_flags, option
from .session import Problems, begin, refuse

if TYPE_CHECKING:
    from compactory_connectors.source.config.connector import ConnectorConfig

    from .configuration import Configuration

__all__ = ["Connector", "Connectors", "Providers", "begin_source", "load_connectors", "provider_files"]

Connector = Annotated[Path, argument("CONNECTOR.json", "A connector: JSON, or .properties.")]
Connectors = Annotated[list[Path], argument("CONNECTOR.json…", "Connectors: JSON (one or several), or .properties.")]
Providers = Annotated[list[str] | None, option("--provider", "NAME=FILE", "File with values of ${NAME:…}; repeatable.")]


def begin_source(log_level: LogLevel = LogLevel.WARNING) -> Configuration:
    """Begin a command on connectors: warn that --postgres does not name their database."""
    if given_flags().postgres is not None:
        warn("--postgres is not used: a source connects to connection.url of its connector")
    return begin(log_level)


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
