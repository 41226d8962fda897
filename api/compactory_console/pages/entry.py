"""The page of one entry: its value, where it came from, its row in Postgres, and its history."""

from __future__ import annotations

from base64 import b64encode
from typing import Any
from urllib.parse import urlencode

import orjson
from starlette.responses import Response

from compactory.errors import CompactoryError, ConfigError
from compactory.records import Partition
from compactory_api.http.problem import NoEntry
from compactory_connectors.kafka.topic_reader import records_at
from compactory_connectors.source.operations.row_of_key import RowRecord, rows_of_key

from ..call import Call

__all__ = ["entry_page", "row_part"]

Differences = list[tuple[str, str, Any, Any]]
"""The fields of two values: kind (same, added, removed, changed), name, old and new value."""


async def entry_page(call: Call) -> Response:
    """Return one entry and its changes. The browser asks for `row_part` next."""
    server, name, _ = call.directory()
    key, entry = await _entry(call)
    feed = call.parts.changes.feed(server, name)
    history = [] if feed is None else feed.of_key(key)
    if entry is None and not history:
        raise NoEntry(name, key)
    return call.page(
        "entry.html",
        server=server,
        name=name,
        key=key,
        entry=entry,
        directory=server.directory(name),
        history=[(change, _differences(change.old, change.new)) for change in history],
        text=None if entry is None else orjson.dumps(entry["value"], option=orjson.OPT_INDENT_2).decode(),
    )


async def row_part(call: Call) -> Response:
    """Return the part of the entry's page that needs Kafka or Postgres: the key of the record, and the row."""
    server, name, _ = call.directory()
    key, entry = await _entry(call)
    connector = call.parts.options.connectors.get(name)
    directory = server.directory(name) or {}
    topic_key: bytes | None = None
    rows: list[tuple[RowRecord, bool, Differences]] = []
    problem = None
    try:
        topic_key = await _topic_key(call, directory, key, entry)
        if connector is not None and topic_key is not None:
            record_key = topic_key
            records = await call.parts.operators.in_tables(
                connector, lambda limited: rows_of_key(limited, directory["topic"], record_key)
            )
            value = None if entry is None else entry["value"]
            shown = [(record, _shown_value(record.value)) for record in records]
            rows = [(record, row == value, _differences(row, value)) for record, row in shown]
    except CompactoryError as error:
        problem = str(error)
    return call.page(
        "_row.html", name=name, key=key, entry=entry, topic_key=topic_key, rows=rows, problem=problem,
        has_connector=connector is not None, is_keyed=directory.get("key") is not None,
    )  # fmt: skip


async def _entry(call: Call) -> tuple[str, dict[str, Any] | None]:
    """Return the key of the address, and its entry as the server lists it, or None."""
    server, _, path = call.directory()
    key = call.request.query_params.get("key", "")
    document = await call.parts.servers.ask(server, f"{path}/entries?{urlencode({'key': key})}")
    return key, next(iter(document["entries"]), None)


async def _topic_key(call: Call, directory: dict[str, Any], key: str, entry: dict[str, Any] | None) -> bytes | None:
    """Return the key of the entry's record; None if it is not known."""
    if directory.get("key") is None:
        return key.encode("utf-8", "surrogatepass")
    if entry is None:
        return None
    origin = Partition(directory["topic"], entry["partition"])
    records = await call.parts.operators.in_kafka(lambda kafka: records_at(kafka, {origin: entry["offset"]}))
    message = records.get(origin)
    if message is None or (message.offset(), message.timestamp()[1]) != (entry["offset"], entry["timestamp_ms"]):
        raise ConfigError("the console's Kafka does not have this record: does the server read another cluster?")
    record_key = message.key()
    return record_key if isinstance(record_key, bytes) else None


def _shown_value(value: bytes | None) -> Any:
    """Return a raw value as a server shows it: JSON, else base64."""
    try:
        return None if value is None else orjson.loads(value)
    except orjson.JSONDecodeError:
        return {"base64": b64encode(value or b"").decode()}


def _differences(old: Any, new: Any) -> Differences:
    """Return the fields of both values."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        kind = "added" if old is None else "removed" if new is None else "same" if old == new else "changed"
        return [(kind, "", old, new)]
    fields = []
    for name in dict.fromkeys((*old, *new)):
        kind = (
            "added" if name not in old
            else "removed" if name not in new
            else "same" if old[name] == new[name]
            else "changed"
        )  # fmt: skip
        fields.append((kind, name, old.get(name), new.get(name)))
    return fields
