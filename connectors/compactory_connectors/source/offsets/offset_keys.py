"""The keys of offset records: which connector and table a record is of."""

from __future__ import annotations

import orjson

__all__ = ["offset_key", "query_key"]


def offset_key(connector: str, *names: str) -> bytes:
    """The key of a table's offset record; ours name its database, schema and table."""
    return orjson.dumps([connector, {"protocol": "1", "table": ".".join(names)}])


def query_key(connector: str) -> bytes:
    """The key of the offset record of a connector with a query."""
    return orjson.dumps([connector, {"query": "query"}])
