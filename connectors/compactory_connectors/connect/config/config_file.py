"""The file of connectors or sinks as keys and values, all of them text: JSON with one or several, or .properties."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from javaproperties import InvalidUEscapeError, KeyValue, parse

from compactory.errors import ConfigError

__all__ = ["parse_properties", "parse_text", "read_file", "read_text"]

_KEYS_BESIDE_CONFIG = {"name", "config", "tasks", "type", "initial_state"}


def read_file(path: Path) -> list[dict[str, str]]:
    """Return keys and values, as text, of each connector of a file. Raises ConfigError that names the file."""
    text = read_text(path)
    try:
        return [parse_properties(text)] if path.suffix == ".properties" else parse_text(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {problem}" for problem in error.problems) from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def read_text(path: Path) -> str:
    """Return the text of a user's file without a byte order mark. Raises ConfigError that names the file."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error


def parse_text(text: str) -> list[dict[str, str]]:
    """Return keys and values of each connector as text, as Connect's REST API coerces them; null counts as left out.

    A connector is bare, or ``{"name": …, "config": {…}}``. Several are a list of those, or what
    ``GET /connectors?expand=info`` answers. Raises ConfigError for text that is not JSON, with line and column, and for
    a value that is not a connector.
    """
    document = _json(text)
    if isinstance(document, list):
        if not document:
            raise ConfigError("the list of connectors is empty")
        return [*map(_connector, document)]
    if isinstance(document, dict) and document and all(_is_info(value) for value in document.values()):
        return [_connector(value["info"]) for value in document.values()]
    return [_connector(document)]


def parse_properties(text: str) -> dict[str, str]:
    r"""Return the keys and values of ``text``; the last of two equal keys wins.

    Raises ValueError for a malformed ``\u``, with the line's number and never its text, which may be a password.
    """
    values: dict[str, str] = {}
    line = 1
    try:
        for item in parse(text):
            if isinstance(item, KeyValue):
                values[item.key] = item.value
            line += max(1, item.source.count("\n"))
    except InvalidUEscapeError:
        raise ValueError(f"line {line}: \\u must be followed by four hexadecimal digits") from None
    return values


def _is_info(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("info"), dict)
        and isinstance(value["info"].get("config"), dict)
    )


def _connector(document: Any) -> dict[str, str]:
    if isinstance(document, dict) and isinstance(document.get("config"), dict):
        extra = set(document) - _KEYS_BESIDE_CONFIG
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
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in document.items()
        if value is not None
    }


def _json(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        doubled = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        if doubled:
            raise ConfigError(f"{key}: given more than once" for key in doubled)
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=unique, parse_int=str, parse_float=str)
    except json.JSONDecodeError as error:
        raise ConfigError(f"line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}") from None
