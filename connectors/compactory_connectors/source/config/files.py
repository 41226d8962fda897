"""Files of connectors → :class:`ConnectorConfig`: JSON with one connector or several, or the .properties of a worker.

Every problem is found before anything starts, and all are raised together. Nothing here connects anywhere.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from compactory.errors import ConfigError

from .connector import ConnectorConfig
from .placeholder import Placeholders
from .properties import parse_properties
from .reading import ConnectorReader

__all__ = ["load_connector", "load_connectors", "parse_connector", "parse_connectors", "read_file"]

_BESIDE = {"name", "config", "tasks", "type", "initial_state"}


def load_connectors(
    path: Path, providers: Mapping[str, Path] | None = None, environment: Mapping[str, str] | None = None
) -> list[ConnectorConfig]:
    """The connectors of a file, in its order; ``.properties`` holds one.

    ``providers`` are those of ``--provider NAME=FILE``; ``environment`` defaults to the process's.
    Raises ConfigError with every problem found, each beginning with the file's name.
    """
    written = read_file(path)
    try:
        return _connectors(written, path.stem, providers, environment)
    except ConfigError as error:
        raise ConfigError(f"{path}: {problem}" for problem in error.problems) from None


def read_file(path: Path) -> list[dict[str, str]]:
    """Keys and values, as text, of each connector of a file. Raises ConfigError, each problem with the file's name."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    try:
        return [_properties(text)] if path.suffix == ".properties" else _settings(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {problem}" for problem in error.problems) from None


def load_connector(
    path: Path, providers: Mapping[str, Path] | None = None, environment: Mapping[str, str] | None = None
) -> ConnectorConfig:
    """Load the connector of a file that holds one. Raises ConfigError like :func:`load_connectors`, and for several."""
    return _only(load_connectors(path, providers, environment), f"{path}: ")


def parse_connectors(
    text: str,
    *,
    default_name: str,
    providers: Mapping[str, Path] | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[ConnectorConfig]:
    """The connectors of JSON text. Raises ConfigError with every problem found."""
    return _connectors(_settings(text), default_name, providers, environment)


def parse_connector(text: str, **options: Any) -> ConnectorConfig:
    """The one connector of JSON text, bare or as Connect's REST API has it: ``{"name": …, "config": {…}}``.

    The options and errors are those of :func:`parse_connectors`.
    """
    return _only(parse_connectors(text, **options))


def _only(found: list[ConnectorConfig], place: str = "") -> ConnectorConfig:
    if len(found) != 1:
        raise ConfigError(f"{place}holds {len(found)} connectors, and one is expected")
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


def _settings(text: str) -> list[dict[str, str]]:
    """Keys and values of each connector as text, as Connect's REST API coerces them; null counts as left out.

    One connector: bare, or ``{"name": …, "config": {…}}``. Several: a list of those, or what
    ``GET /connectors?expand=info`` answers. Raises ConfigError for text that is not JSON, with line and column, and for
    a value that is not a connector.
    """
    document = _json(text)
    if isinstance(document, list):
        if not document:
            raise ConfigError("the list of connectors is empty")
        return [*map(_one, document)]
    if isinstance(document, dict) and document and all(_is_info(value) for value in document.values()):
        return [_one(value["info"]) for value in document.values()]
    return [_one(document)]


def _properties(text: str) -> dict[str, str]:
    """The settings of a ``.properties`` file. Raises ConfigError."""
    try:
        return parse_properties(text)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _is_info(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("info"), dict)
        and isinstance(value["info"].get("config"), dict)
    )


def _one(document: Any) -> dict[str, str]:
    if isinstance(document, dict) and isinstance(document.get("config"), dict):
        extra = set(document) - _BESIDE
        if extra:
            raise ConfigError(f"beside name and config there is {key}; move it into config" for key in sorted(extra))
        name = {"name": document["name"]} if "name" in document else {}
        if (inner := document["config"].get("name")) not in {None, name.get("name", inner)}:
            raise ConfigError(f"name: is {name['name']} beside config, and {inner} in it; drop one of them")
        document = document["config"] | name
    if not isinstance(document, dict):
        raise ConfigError('must be a JSON object: the configuration, or {"name": …, "config": {…}}')
    nested = [key for key, value in document.items() if isinstance(value, dict | list)]
    if nested:
        raise ConfigError(f"{key}: must be text, a number, true or false" for key in nested)
    return {key: _as_text(value) for key, value in document.items() if value is not None}


def _json(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        if twice:
            raise ConfigError(f"{key}: given more than once" for key in twice)
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=unique, parse_int=str, parse_float=str)
    except json.JSONDecodeError as error:
        raise ConfigError(f"line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}") from None


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
