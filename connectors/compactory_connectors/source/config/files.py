"""Files of connectors → :class:`ConnectorConfig`: JSON with one connector or several, or the .properties of a worker.

Every problem is found before anything starts, and all are raised together. Nothing here connects anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from compactory.errors import ConfigError
from compactory_connectors.connect.config.config_file import parse_text, read_file
from compactory_connectors.connect.config.placeholder import Placeholders

from .connector import ConnectorConfig
from .reading import ConnectorReader

__all__ = ["load_connector", "load_connectors", "parse_connector"]


def load_connectors(
    path: Path, providers: Mapping[str, Path] | None = None, environment: Mapping[str, str] | None = None
) -> list[ConnectorConfig]:
    """Return the connectors of a file, in its order; ``.properties`` holds one.

    ``providers`` are those of ``--provider NAME=FILE``; ``environment`` defaults to the process's.
    Raises ConfigError with every problem found, each beginning with the file's name.
    """
    written = read_file(path)
    try:
        return _connectors(written, path.stem, providers, environment)
    except ConfigError as error:
        raise ConfigError(f"{path}: {problem}" for problem in error.problems) from None


def load_connector(
    path: Path, providers: Mapping[str, Path] | None = None, environment: Mapping[str, str] | None = None
) -> ConnectorConfig:
    """Return the connector of a file that holds one. Raises ConfigError as :func:`load_connectors` does."""
    return _only(load_connectors(path, providers, environment), f"{path}: ")


def parse_connector(text: str, *, default_name: str, environment: Mapping[str, str] | None = None) -> ConnectorConfig:
    """Return the connector of JSON text that holds one. Raises ConfigError with every problem found."""
    return _only(_connectors(parse_text(text), default_name, None, environment))


def _only(connectors: list[ConnectorConfig], place: str = "") -> ConnectorConfig:
    if len(connectors) != 1:
        raise ConfigError(f"{place}holds {len(connectors)} connectors, and one is expected")
    return connectors[0]


def _connectors(
    written: Sequence[Mapping[str, str]],
    default_name: str,
    providers: Mapping[str, Path] | None,
    environment: Mapping[str, str] | None,
) -> list[ConnectorConfig]:
    problems: list[str] = []
    connectors: list[ConnectorConfig] = []
    for number, settings in enumerate(written, 1):
        placeholders = Placeholders(providers or {}, os.environ if environment is None else environment, settings)
        try:
            connectors.append(ConnectorReader(settings, placeholders).connector(default_name))
        except ConfigError as error:
            where = "" if len(written) == 1 else f"{settings.get('name', f'connector {number}')}: "
            problems += [f"{where}{problem}" for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return connectors
