"""The table of connector keys: what each means, its default, what it accepts and why a key is refused.

The names are those of the Confluent JDBC source connector and of Kafka Connect. Every key that they know is here, so
that none is ever ignored: it is HONOURED, MOOT (accepted, because nothing it could change exists here; the note says
why) or REFUSED (the note says why and what to do). Documentation is generated from this table.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..setting import Setting, nearest
from .keys import connection, polling, records, tables, topics

__all__ = ["SETTINGS", "find_setting", "unknown_key"]

SETTINGS: tuple[Setting, ...] = (*connection.KEYS, *tables.KEYS, *polling.KEYS, *records.KEYS, *topics.KEYS)

_EXACT: Mapping[str, Setting] = {item.name: item for item in SETTINGS if not item.name.endswith(".*")}
_PREFIXES: tuple[tuple[str, Setting], ...] = tuple(
    (item.name[:-1], item) for item in SETTINGS if item.name.endswith(".*")
)


def find_setting(key: str) -> Setting | None:
    """The entry of ``key``, exact before prefix, the first prefix that fits; None when the key is unknown."""
    if key in _EXACT:
        return _EXACT[key]
    return next((item for prefix, item in _PREFIXES if key.startswith(prefix) and key != prefix), None)


def unknown_key(key: str) -> str:
    """The problem text of a key that is not in the table."""
    return f"{key}: unknown key{nearest(key, _EXACT)}"
