"""``compactory source run|validate``: runs connectors, or shows what they would send."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from compactory.errors import ConfigError

from ..context.flags import App, LogLevel, argument, flag
from ..context.session import Problems, Providers, all_of, begin_source, load_connectors
from ..context.worker import Health, ListenOption, health_on, stopping
from ..views.tables import document, print_lines
from ..views.terminal import (
    counted,
    decoded,
    escape,
    fields,
    json_or_text,
    legible,
    print_facts,
    print_json,
    print_table,
    say,
    wants_json,
)
from . import source_control, source_offsets

if TYPE_CHECKING:
    from compactory.kafka.client import Kafka
    from compactory_connectors.source.config.connector import ConnectorConfig
    from compactory_connectors.source.operations.preview import ConnectorPreview, TablePreview
    from compactory_connectors.source.status.status import SourceStatus

__all__ = ["app"]

_LOOK = 0.1  # seconds between two checks of the threads
_GRACE = 15.0  # seconds that a source may take to stop; what is not acknowledged by then is sent by the next one

app = App(
    name="source",
    help="Poll Postgres tables into compacted topics, as a Kafka Connect JDBC source connector describes it.",
)
app.add_typer(source_offsets.app)
app.command("status")(source_control.show_source_status)
app.command("pause")(source_control.pause)
app.command("resume")(source_control.resume)
app.command("restart")(source_control.restart)
app.command("approve")(source_control.approve)

_Connectors = Annotated[list[Path], argument("CONNECTOR.json…", "Connectors: JSON (one or several), or .properties.")]


@app.command("run")
def run_connectors(
    connectors: _Connectors,
    once: Annotated[bool, flag("--once", "Publish what is committed by now, then end.")] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Show the first records; write nothing.")] = False,
    provider: Providers = None,
    no_create_topics: Annotated[bool, flag("--no-create-topics", "Create no topic; fail if one is missing.")] = False,
    listen: ListenOption = None,
) -> None:
    """Publish every committed change of the connectors' tables until SIGTERM or Ctrl-C.

    Example: `compactory source run tenants.json --provider tpp=secrets.properties --listen 0.0.0.0:8081`
    """
    if dry_run:
        begin_source()
        _show_previews(connectors, provider, records=True)
        return
    configuration = begin_source(LogLevel.INFO)
    loaded, kafka, health = all_of(
        partial(load_connectors, connectors, provider or ()),
        configuration.kafka,
        partial(health_on, configuration, listen),
    )
    _run_sources(loaded, kafka, once=once, create_topics=not no_create_topics, health=health)


@app.command("validate")
def validate(connectors: _Connectors, provider: Providers = None) -> None:
    """Check connectors against their databases; show topic, key, fields and SQL of every table.

    Example: `compactory source validate tenants.json`
    """
    begin_source()
    _show_previews(connectors, provider, records=False)


def _run_sources(
    connectors: Sequence[ConnectorConfig], kafka: Kafka, *, once: bool, create_topics: bool, health: Health
) -> None:
    """Run each connector in a thread until all are done, one fails, or a signal comes; print what was sent.

    Raises the first error of a source; with ``once`` KeyboardInterrupt if a signal came before all was published.
    """
    from compactory_connectors.source.runtime.source import Source
    from compactory_connectors.source.runtime.worker import SourceWorker

    sources = [Source(connector, kafka, create_topics=create_topics) for connector in connectors]
    failures: list[BaseException] = []
    with stopping() as stop:

        def run(source: Source) -> None:
            try:
                source.run(stop, once=once)
            except BaseException as error:  # noqa: BLE001 - raised again by the main thread
                failures.append(error)
                stop.set()

        threads = [threading.Thread(target=run, args=(source,), daemon=True) for source in sources]
        workers = [SourceWorker(source, thread.is_alive) for source, thread in zip(sources, threads, strict=True)]
        with health(workers):
            for thread in threads:
                thread.start()
            while not stop.wait(_LOOK) and any(thread.is_alive() for thread in threads):
                pass
            deadline = time.monotonic() + _GRACE
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
    if failures and all(isinstance(error, ConfigError) for error in failures):
        raise ConfigError(problem for error in failures for problem in getattr(error, "problems", ()))
    if failures:
        raise failures[0]
    interrupted = once and stop.is_set()
    end = "done" if once and not interrupted else "stopped"
    statuses = [source.status() for source in sources]
    print_lines("connectors", statuses, lambda status: _source_line(status, end), document=_source_json)
    if interrupted:
        raise KeyboardInterrupt


def _source_json(status: SourceStatus) -> dict[str, object]:
    tables = [
        {"table": table.table, "topic": table.topic, "rows": table.rows_total, "polls": table.polls_total,
         "errors": table.errors_total, "adopted": table.adopted}
        for table in status.tables
    ]  # fmt: skip
    return {"connector": status.connector, "state": status.state.value.lower(), "tables": tables}


def _source_line(status: SourceStatus, end: str) -> str:
    tables = [f"{table.table} → {table.topic}: {counted(table.rows_total, 'record')}" for table in status.tables]
    return f"[bold]{status.connector}[/] {end}: {', '.join(tables) or 'nothing was sent'}"


def _show_previews(connectors: list[Path], provider: list[str] | None, *, records: bool) -> None:
    """Print the tables of each connector with their columns, or with their first records."""
    from compactory_connectors.source.operations.preview import preview_connector

    loaded = load_connectors(connectors, provider or ())
    problems = Problems()
    previews = [(config, problems.of(partial(preview_connector, config))) for config in loaded]
    problems.raise_any()
    shown = [(config, preview) for config, preview in previews if preview is not None]
    if wants_json():
        print_json({"connectors": [_preview_json(config, preview) for config, preview in shown]})
        return
    for config, preview in shown:
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


def _preview_json(config: ConnectorConfig, preview: ConnectorPreview) -> dict[str, Any]:
    tables = [
        document(table) | {"fields": _value_fields(table), "records": _records_json(table)} for table in preview.tables
    ]
    names = {"connector": config.name, "server": config.connection.server, "mode": config.mode.value}
    return names | fields(preview, "warnings", "notes") | {"tables": tables}


def _records_json(table: TablePreview) -> list[dict[str, Any]]:
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
    print_table(("column", "type", "null", "in the record"), rows, indent=4)


def _print_records(table: TablePreview) -> None:
    topics = ("topic",) if any(len(record) > 2 for record in table.records) else ()
    rows = [(legible(key), legible(value, "(tombstone)"), *topic) for key, value, *topic in table.records]
    print_table(("key", "value", *topics), rows, indent=4)
    say(f"    {len(table.records)} of {counted(table.rows, 'record')}; nothing was written")


def _value_fields(table: TablePreview) -> list[str]:
    """Return the fields of the first record's value."""
    values = (json_or_text(record[1]) for record in table.records if record[1] is not None)
    first = next(values, None)
    payload = first.get("payload", first) if isinstance(first, dict) else None
    return list(payload) if isinstance(payload, dict) else []
