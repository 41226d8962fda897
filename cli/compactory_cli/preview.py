"""What connectors would send, table by table: for ``source validate`` and ``source run --dry-run``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.padding import Padding

from .terminal import number, output, print_json, table

if TYPE_CHECKING:
    from compactory_connectors.source.connector import ConnectorConfig
    from compactory_connectors.source.preview import TablePreview

__all__ = ["show"]


def show(found: Sequence[tuple[ConnectorConfig, Sequence[TablePreview]]], *, as_json: bool, records: bool) -> None:
    """Print the tables of each connector, with ``records`` their first records too."""
    if as_json:
        connectors = [
            {"connector": config.name, "server": config.connection.server, "tables": [_json(item) for item in tables]}
            for config, tables in found
        ]
        print_json({"connectors": connectors})
        return
    for config, tables in found:
        _say(f"[bold]{config.name}[/]: reads {config.connection.server}")
        for item in tables:
            _plan(item)
            if records:
                _records(item)


def _json(item: TablePreview) -> dict[str, Any]:
    return {
        "table": item.table,
        "topic": item.topic,
        "rows": item.rows,
        "key_columns": list(item.key_columns),
        "columns": list(item.columns),
        "fields": _fields(item),
        "adopted": item.adopted,
        "notifies": item.notifies,
        "sql": item.sql,
        "warnings": list(item.warnings),
        "records": [{"key": _text(key), "value": _value(value)} for key, value in item.records],
    }


def _plan(item: TablePreview) -> None:
    _say(f"\n  {item.table} → topic [bold]{item.topic}[/]")
    facts = {
        "rows": number(item.rows),
        "key": ", ".join(item.key_columns),
        "columns": ", ".join(item.columns),
        "fields": ", ".join(_fields(item)) or "not known: the table is empty",
        "adopted": _adopted(item),
        "sql": " ".join(item.sql.split()),
    }
    for name, text in facts.items():
        _say(f"    [dim]{name:<8}[/] {escape(text)}")
    for warning in item.warnings:
        _say(f"    [yellow]warning[/]  {escape(warning)}")


def _adopted(item: TablePreview) -> str:
    if not item.adopted:
        return f"no; run compactory sql adopt {item.table} --key … for hard deletes and less work a poll"
    return "yes, and wakes the source" if item.notifies else "yes; polled, it does not wake the source"


def _records(item: TablePreview) -> None:
    shown = table("key", "value")
    for key, value in item.records:
        shown.add_row(escape(_text(key) or ""), escape(_text(value) or "(tombstone)"))
    output().print(Padding(shown, (1, 4), expand=False))
    _say(f"    {len(item.records)} of {number(item.rows)} records; nothing was written")


def _fields(item: TablePreview) -> list[str]:
    """The fields of the first record's value."""
    first = next((value for _, value in item.records if value is not None), b"{}")
    document = _value(first)
    payload = document.get("payload", document) if isinstance(document, dict) else {}
    return list(payload) if isinstance(payload, dict) else []


def _value(raw: bytes | None) -> Any:
    if raw is None:
        return None
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="replace")


def _say(text: str) -> None:
    output().print(text, highlight=False, soft_wrap=True)
