"""The records that connectors would send, by table: for ``source validate`` and ``source run --dry-run``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.padding import Padding

from .terminal import (
    counted,
    decoded,
    fields,
    json_or_text,
    legible,
    output,
    print_facts,
    print_json,
    say,
    table,
    wants_json,
)

if TYPE_CHECKING:
    from compactory_connectors.kafka.producer_record import ProducerRecord
    from compactory_connectors.source.config.connector import ConnectorConfig
    from compactory_connectors.source.operations.preview import ConnectorPreview, TablePreview

__all__ = ["show_previews"]


def show_previews(previews: Sequence[tuple[ConnectorConfig, ConnectorPreview]], *, records: bool) -> None:
    """Print the tables of each connector, with ``records`` their first records too."""
    if wants_json():
        connectors = [
            {
                "connector": config.name,
                "server": config.connection.server,
                "mode": config.mode.value,
                "tables": [_table_preview_json(item) for item in shown.tables],
                **fields(shown, "warnings", "notes"),
            }
            for config, shown in previews
        ]
        print_json({"connectors": connectors})
        return
    for config, shown in previews:
        say(f"[bold]{escape(config.name)}[/]: reads {config.connection.server}, mode {config.mode.value}")
        print_facts((("warning", warning) for warning in shown.warnings), style="yellow")
        print_facts(("note", note) for note in shown.notes)
        for item in shown.tables:
            _plan(item, schema=not records)
            if records:
                _records(item)


def _table_preview_json(item: TablePreview) -> dict[str, Any]:
    return {
        **fields(item, "table", "kind", "topic", "mode", "cursor", "rows", "key_columns", "columns"),
        **fields(item, "rows_found_by", "misses_late_commits"),
        "left_out": [column.name for column in item.schema if not column.used],
        "schema": [fields(column, "name", "type", "nullable", "used") for column in item.schema],
        "fields": _value_fields(item),
        **fields(item, "adopted", "notifies", "sql", "skipped", "warnings"),
        "records": [
            {"key": decoded(record[0]), "value": json_or_text(record[1]), **_topic(record)} for record in item.records
        ],
    }


def _plan(item: TablePreview, *, schema: bool) -> None:
    say(f"\n  {escape(item.table)} → topic [bold]{escape(item.topic)}[/]")
    facts = {
        "kind": f"{item.kind}, {counted(item.rows, 'row')}",
        "key": ", ".join(item.key_columns) or "none",
        "order": ", ".join(item.cursor) or "none",
        "finds": item.rows_found_by,
        "late": "commits are missed (no guarantee 8)"
        if item.misses_late_commits
        else "commits are found (guarantee 8)",
        "columns": ", ".join(item.columns),
        "fields": ", ".join(_value_fields(item)) or _no_fields(item),
        "adopted": _adopted(item),
        "sql": item.sql.strip() if "--" in item.sql else " ".join(item.sql.split()),
    }
    print_facts(facts.items(), "    ")
    print_facts((("skipped", reason) for reason in item.skipped), "    ", "yellow")
    print_facts((("warning", warning) for warning in item.warnings), "    ", "yellow")
    if schema:
        _schema(item)


def _schema(item: TablePreview) -> None:
    """Print each column with its type, and whether it is in key and value."""
    rows = (
        (
            column.name,
            column.type,
            "yes" if column.nullable else "no",
            "key and value" if column.in_key else "value" if column.used else "left out",
        )
        for column in item.schema
    )
    output().print(Padding(table(("column", "type", "null", "in the record"), rows), (1, 4), expand=False))


def _adopted(item: TablePreview) -> str:
    if item.kind not in {"table", "partitioned table"}:
        return f"no: a {item.kind} can't be"
    if not item.adopted:
        return f"no; run compactory sql adopt {item.table} --key … for hard deletes and less work a poll"
    return "yes, and wakes the source" if item.notifies else "yes; polled, it does not wake the source"


def _records(item: TablePreview) -> None:
    routed = any(len(record) != 2 for record in item.records)
    shown = table(
        ("key", "value", *(("topic",) if routed else ())),
        ((legible(record[0]), legible(record[1], "(tombstone)"), *_topic(record).values()) for record in item.records),
    )
    output().print(Padding(shown, (1, 4), expand=False))
    say(f"    {len(item.records)} of {counted(item.rows, 'record')}; nothing was written")


def _topic(record: ProducerRecord) -> dict[str, str]:
    """Return the topic of a record that names its own, where transforms send rows to several."""
    return {} if len(record) == 2 else {"topic": record[2]}


def _value_fields(item: TablePreview) -> list[str]:
    """Return the fields of the first record's value."""
    first = next((record[1] for record in item.records if record[1] is not None), b"{}")
    document = json_or_text(first)
    payload = document.get("payload", document) if isinstance(document, dict) else {}
    return list(payload) if isinstance(payload, dict) else []


def _no_fields(item: TablePreview) -> str:
    if any(record[1] is not None for record in item.records):
        return "not shown: values are not JSON objects"
    return "not known: no row has a value to show"
