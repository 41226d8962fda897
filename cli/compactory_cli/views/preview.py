"""The records that connectors would send, by table: for ``source validate`` and ``source run --dry-run``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from .tables import document
from .terminal import (
    counted,
    decoded,
    fields,
    json_or_text,
    legible,
    print_facts,
    print_indented_table,
    print_json,
    say,
    wants_json,
)

if TYPE_CHECKING:
    from compactory_connectors.source.config.connector import ConnectorConfig
    from compactory_connectors.source.operations.preview import ConnectorPreview, TablePreview

__all__ = ["show_previews"]


def show_previews(previews: Sequence[tuple[ConnectorConfig, ConnectorPreview]], *, records: bool) -> None:
    """Print the tables of each connector, with ``records`` their first records too."""
    if wants_json():
        print_json({"connectors": [_connector_json(config, preview) for config, preview in previews]})
        return
    for config, preview in previews:
        say(f"[bold]{escape(config.name)}[/]: reads {config.connection.server}, mode {config.mode.value}")
        print_facts((("warning", warning) for warning in preview.warnings), style="yellow")
        print_facts(("note", note) for note in preview.notes)
        for table in preview.tables:
            say(f"\n  {escape(table.table)} → topic [bold]{escape(table.topic)}[/]")
            print_facts(_table_facts(table), "    ")
            print_facts((("skipped", reason) for reason in table.skipped), "    ", "yellow")
            print_facts((("warning", warning) for warning in table.warnings), "    ", "yellow")
            if records:
                _print_records(table)
            else:
                _print_columns(table)


def _connector_json(config: ConnectorConfig, preview: ConnectorPreview) -> dict[str, Any]:
    tables = [
        document(table) | {"fields": _value_fields(table), "records": _records(table)} for table in preview.tables
    ]
    names = {"connector": config.name, "server": config.connection.server, "mode": config.mode.value}
    return names | fields(preview, "warnings", "notes") | {"tables": tables}


def _records(table: TablePreview) -> list[dict[str, Any]]:
    """Return the first records as JSON, with the topic where transforms send rows to several."""
    return [
        {"key": decoded(key), "value": json_or_text(value), **({"topic": topic[0]} if topic else {})}
        for key, value, *topic in table.records
    ]


def _table_facts(table: TablePreview) -> Iterator[tuple[str, str]]:
    yield "kind", f"{table.kind}, {counted(table.rows, 'row')}"
    yield "key", ", ".join(table.key_columns) or "none"
    yield "order", ", ".join(table.cursor) or "none"
    yield "finds", table.rows_found_by
    yield "late", f"commits are {'missed (no guarantee 8)' if table.misses_late_commits else 'found (guarantee 8)'}"
    yield "columns", ", ".join(table.columns)
    yield "fields", ", ".join(_value_fields(table)) or "not known: no row has a JSON object as its value"
    yield "adopted", _adopted(table)
    yield "sql", table.sql.strip() if "--" in table.sql else " ".join(table.sql.split())


def _adopted(table: TablePreview) -> str:
    if table.kind not in {"table", "partitioned table"}:
        return f"no: a {table.kind} can't be"
    if not table.adopted:
        return f"no; run compactory sql adopt {table.table} --key … for hard deletes and less work a poll"
    return "yes, and wakes the source" if table.notifies else "yes; polled, it does not wake the source"


def _print_columns(table: TablePreview) -> None:
    """Print each column with its type, and whether it is in key and value."""
    rows = [
        (
            column.name,
            column.type,
            "yes" if column.nullable else "no",
            "key and value" if column.in_key else "value" if column.used else "left out",
        )
        for column in table.schema
    ]
    print_indented_table(("column", "type", "null", "in the record"), rows)


def _print_records(table: TablePreview) -> None:
    topics = ("topic",) if any(len(record) > 2 for record in table.records) else ()
    rows = [(legible(key), legible(value, "(tombstone)"), *topic) for key, value, *topic in table.records]
    print_indented_table(("key", "value", *topics), rows)
    say(f"    {len(table.records)} of {counted(table.rows, 'record')}; nothing was written")


def _value_fields(table: TablePreview) -> list[str]:
    """Return the fields of the first record's value."""
    values = (json_or_text(record[1]) for record in table.records if record[1] is not None)
    first = next(values, None)
    payload = first.get("payload", first) if isinstance(first, dict) else None
    return list(payload) if isinstance(payload, dict) else []
