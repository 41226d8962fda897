"""A connector: the configuration of a Kafka Connect JDBC source connector, read, checked and frozen.

From files: JSON with one connector or several, or the .properties of a standalone worker. Every problem is found before
anything starts, and all are raised together. Nothing here connects anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from compactory.errors import ConfigError

from .connector_config import ConnectorConfig, CursorColumns, ErrorPolicy, Mode, SoftDelete
from .connector_json import read_properties, read_settings
from .connector_reader import ConnectorReader
from .placeholder import Placeholders
from .selection import TableName, TableSelection, split_identifier
from .topic_rules import TopicCreation, TopicRules

__all__ = [
    "ConnectorConfig",
    "CursorColumns",
    "ErrorPolicy",
    "Mode",
    "SoftDelete",
    "TableName",
    "TableSelection",
    "TopicCreation",
    "TopicRules",
    "load_connector",
    "load_connectors",
    "parse_connector",
    "parse_connectors",
    "split_identifier",
]


def load_connectors(
    path: Path, providers: Mapping[str, Path] | None = None, environment: Mapping[str, str] | None = None
) -> list[ConnectorConfig]:
    """The connectors of a file, in its order; ``.properties`` holds one.

    ``providers`` are those of ``--provider NAME=FILE``; ``environment`` defaults to the process's.
    Raises ConfigError with every problem found, each beginning with the file's name.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    try:
        written = [read_properties(text)] if path.suffix == ".properties" else read_settings(text)
        return _connectors(written, path.stem, providers, environment)
    except ConfigError as error:
        raise ConfigError(f"{path}: {problem}" for problem in error.problems) from None


def load_connector(
    path: Path, providers: Mapping[str, Path] | None = None, environment: Mapping[str, str] | None = None
) -> ConnectorConfig:
    """The connector of a file that holds one. Raises ConfigError as :func:`load_connectors`, and for several."""
    found = load_connectors(path, providers, environment)
    if len(found) != 1:
        raise ConfigError(f"{path}: holds {len(found)} connectors, and one is expected")
    return found[0]


def parse_connectors(
    text: str,
    *,
    default_name: str,
    providers: Mapping[str, Path] | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[ConnectorConfig]:
    """The connectors of JSON text. Raises ConfigError with every problem found."""
    return _connectors(read_settings(text), default_name, providers, environment)


def parse_connector(
    text: str,
    *,
    default_name: str,
    providers: Mapping[str, Path] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ConnectorConfig:
    """The one connector of JSON text, bare or as Connect's REST API has it: ``{"name": …, "config": {…}}``.

    Raises ConfigError with every problem found.
    """
    found = parse_connectors(text, default_name=default_name, providers=providers, environment=environment)
    if len(found) != 1:
        raise ConfigError(f"holds {len(found)} connectors, and one is expected")
    return found[0]


def _connectors(
    written: Iterable[Mapping[str, str]],
    default_name: str,
    providers: Mapping[str, Path] | None,
    environment: Mapping[str, str] | None,
) -> list[ConnectorConfig]:
    problems: list[str] = []
    found: list[ConnectorConfig] = []
    every = list(written)
    for number, settings in enumerate(every, 1):
        placeholders = Placeholders(providers or {}, os.environ if environment is None else environment, settings)
        try:
            found.append(ConnectorReader(settings, placeholders).connector(default_name))
        except ConfigError as error:
            where = "" if len(every) == 1 else f"{settings.get('name', f'connector {number}')}: "
            problems += [f"{where}{problem}" for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return found
