"""The JSON around a connector's settings: bare, or with a name beside them as Connect's REST API has it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from compactory.errors import ConfigError

__all__ = ["read_settings"]


def read_settings(text: str) -> dict[str, str]:
    """Keys and values as text, as Connect's REST API coerces them; null counts as left out.

    Raises ConfigError for text that is not JSON, with line and column, and for what is not a connector.
    """
    document = _json(text)
    if isinstance(document, dict) and isinstance(document.get("config"), dict):
        extra = set(document) - {"name", "config", "tasks", "type", "initial_state"}
        if extra:
            raise ConfigError(f"beside name and config there is {key}; move it into config" for key in sorted(extra))
        name = {"name": document["name"]} if "name" in document else {}
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
