"""The keys of offset records: which connector and table one is of, and which others share a topic or a session."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import orjson

from .offset import SourceOffset

__all__ = ["offset_key", "query_key", "sessions_of", "sharing"]


def offset_key(connector: str, database: str, schema: str, table: str) -> bytes:
    """The key of a table's offset record."""
    return orjson.dumps([connector, {"protocol": "1", "table": f"{database}.{schema}.{table}"}])


def query_key(connector: str) -> bytes:
    """The key of the offset record of a connector with a query."""
    return orjson.dumps([connector, {"query": "query"}])


def sharing(topic: str, table: bytes, offsets: Mapping[bytes, bytes]) -> list[str]:
    """Other tables than that of the key ``table`` which are published to the topic, by all values of the offsets topic.

    The same table under another connector's name is no other table: the connector was renamed. What can't be read
    belongs to somebody else.
    """
    found: set[str] = set()
    for key, value in offsets.items():
        with suppress(ValueError, TypeError, KeyError, IndexError):
            name = orjson.loads(key)[1]["table"]
            if name != orjson.loads(table)[1]["table"] and orjson.loads(value)["topic"][0] == topic:
                found.add(str(name))
    return sorted(found)


def sessions_of(connector: str, offsets: Mapping[bytes, bytes]) -> set[str]:
    """The ids of sessions that a connector's offsets name, by all values of the offsets topic."""
    found: set[str | None] = set()
    for key, value in offsets.items():
        with suppress(ValueError, TypeError, KeyError, IndexError):
            if orjson.loads(key)[0] == connector:
                found.add(SourceOffset.loads(value).identity.session)
    return {session for session in found if session is not None}
