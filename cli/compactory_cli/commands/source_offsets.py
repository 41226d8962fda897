"""``compactory source offsets``: shows and edits the offsets of a connector's tables."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..context.flags import App, argument, flag, option
from ..context.session import Providers, all_of, begin_source, confirm, load_connectors, refuse
from ..views.moment import microseconds
from ..views.source_view import show_changes, show_offsets
from ..views.terminal import wants_json, warn
from .operators import Yes

if TYPE_CHECKING:
    from compactory.kafka.client import Kafka
    from compactory_connectors.source.config.connector import ConnectorConfig
    from compactory_connectors.source.offsets.offset_parts import Edit
    from compactory_connectors.source.offsets.stored_offsets import StoredOffset
    from compactory_connectors.source.operations.offset_admin import OffsetAdmin
    from compactory_connectors.source.operations.offset_edit import Decide, OffsetChange

__all__ = ["app"]

app = App(name="offsets", help="Show, forget, set and move the offsets of a connector.")

_Connector = Annotated[Path, argument("CONNECTOR.json", "A connector: JSON, or .properties.")]
_Tables = Annotated[list[str] | None, option("--table", "TABLE", "Only this table; repeatable.")]
_DryRun = Annotated[bool, flag("--dry-run", "Show the offsets before and after and the rows to send; write nothing.")]
_Force = Annotated[bool, flag("--force", "Edit also while a source runs; the source continues from the new offset.")]


@app.command("show")
def show_source_offsets(
    connector: _Connector,
    provider: Providers = None,
    table: _Tables = None,
    count: Annotated[bool, flag("--count", "Count the rows that a poll would send now; asks Postgres.")] = False,
) -> None:
    """Show the offset of every table, its server, when it was written, and who edited it.

    Asks Kafka alone, unless rows are to be counted.

    Example: `compactory source offsets show tenants.json --count`
    """
    from compactory_connectors.source.offsets.stored_offsets import matching_tables

    config, kafka = _connector_and_kafka(connector, provider)
    if not count:
        show_offsets(config.name, *_stored(config, kafka, table or ()))
        return
    with _admin(config, kafka) as admin:
        stored = admin.stored()
        offsets = [(name, stored.get(admin.key(name))) for name in matching_tables(list(admin.plans), table or ())]
        rows = {name: admin.count(name, item.offset if item else None) for name, item in offsets}
    show_offsets(config.name, offsets, rows=rows)


@app.command("reset")
def reset(
    connector: _Connector,
    provider: Providers = None,
    table: _Tables = None,
    dry_run: _DryRun = False,
    yes: Yes = False,
    force: _Force = False,
) -> None:
    """Delete offsets: the next run loads the tables again and removes keys that they lack.

    Example: `compactory source offsets reset tenants.json --table tenants --dry-run`
    """
    from compactory_connectors.source.operations.offset_edit import new_edit

    config, kafka = _connector_and_kafka(connector, provider)
    with _admin(config, kafka) as admin:
        _edit(config, admin, partial(admin.decide_reset, table or ()), new_edit("reset"), dry_run, yes, force)


@app.command("set")
def set_source_offsets(
    connector: _Connector,
    provider: Providers = None,
    table: _Tables = None,
    *,
    timestamp: Annotated[
        str | None,
        option(
            "--timestamp",
            "TIME",
            "Send from this time on, as Connect does: ISO 8601 in UTC, or ms since 1970.",
        ),
    ] = None,
    incrementing: Annotated[int | None, option("--incrementing", "ID", "Of that time only greater ids.")] = None,
    to_time: Annotated[str | None, option("--to-time", "TIME", "Send from this time on.")] = None,
    dry_run: _DryRun = False,
    yes: Yes = False,
    force: _Force = False,
) -> None:
    """Set offsets: the next run sends all rows after that offset, also rows that were sent before.

    It also sends rows that were committed since the last poll.

    Example: `compactory source offsets set tenants.json --to-time 2024-01-31T10:00+02:00`
    """
    from compactory_connectors.source.offsets.offset_parts import Cursor
    from compactory_connectors.source.operations.offset_edit import new_edit

    if (timestamp is not None or incrementing is not None) == (to_time is not None):
        refuse("say where to: --timestamp TIME [--incrementing ID], or --to-time TIME")
    option_name, time = ("--timestamp", timestamp) if to_time is None else ("--to-time", to_time)
    cursor = Cursor.from_micros(microseconds(option_name, time) if time is not None else None, incrementing)
    config, kafka = _connector_and_kafka(connector, provider)
    options = {"--timestamp": timestamp, "--incrementing": incrementing, "--to-time": to_time}
    edit = new_edit(" ".join(["set", *(f"{name} {value}" for name, value in options.items() if value is not None)]))
    with _admin(config, kafka) as admin:
        includes_time = to_time is not None

        def decide(stored: Sequence[StoredOffset]) -> list[OffsetChange]:
            return admin.decide_set(table or (), cursor, edit, stored, includes_time=includes_time)

        _edit(config, admin, decide, edit, dry_run, yes, force)


@app.command("import")
def import_offsets(
    connector: _Connector,
    provider: Providers = None,
    table: _Tables = None,
    *,
    from_connect: Annotated[str, option("--from-connect", "TOPIC", "The workers' offset.storage.topic on this Kafka.")],
    connect_name: Annotated[str | None, option("--connect-name", "NAME", "The connector's name in Connect.")] = None,
    by_cursor: Annotated[bool, flag("--by-cursor", "Trust Connect's offset; compare no tables with topics.")] = False,
    dry_run: _DryRun = False,
    yes: Yes = False,
    force: _Force = False,
) -> None:
    """Continue where Kafka Connect stopped, without losing or repeating a record. Stop its connector first.

    The first run compares every row with the topic: it sends the rows that Connect lost by
    reading too early, and not those that the topic has.

    Example: `compactory source offsets import tenants.json --from-connect connect-offsets --dry-run`
    """
    from compactory_connectors.source.operations import connect_offsets
    from compactory_connectors.source.operations.offset_edit import new_edit

    config, kafka = _connector_and_kafka(connector, provider)
    name, where = connect_name or config.name, f"topic {from_connect!r}"
    offsets = connect_offsets.connector_offsets(connect_offsets.read_topic(kafka, from_connect), name, where)
    edit = new_edit(f"import of connector {name} from {where}")
    with _admin(config, kafka) as admin:
        if unused := admin.unused(offsets):
            warn(f"{where} has offsets of tables that this connector does not read: {', '.join(unused)}")
        decide = partial(admin.decide_import, table or (), offsets, edit, by_cursor=by_cursor)
        _edit(config, admin, decide, edit, dry_run, yes, force)


def _connector_and_kafka(path: Path, provider: Providers) -> tuple[ConnectorConfig, Kafka]:
    """Return the connector and the cluster. Raises ConfigError with the problems of both."""
    configuration = begin_source()
    loaded, kafka = all_of(partial(load_connectors, [path], provider or ()), configuration.kafka)
    if len(loaded) > 1:
        names = ", ".join(config.name for config in loaded)
        refuse(f"{path}: has several connectors ({names}); write this connector into its own file")
    return loaded[0], kafka


def _edit(
    config: ConnectorConfig, admin: OffsetAdmin, decide: Decide, edit: Edit, dry_run: bool, yes: bool, force: bool
) -> None:
    """Show the effect of an edit, ask, write."""
    previews = admin.preview(decide)
    written = not dry_run and bool(previews)
    if written and not wants_json():
        show_changes(config.name, previews, written=None)
        if not yes:
            confirm("Write this?")
    if written:
        admin.write(decide, edit, force=force)
    show_changes(config.name, previews, written=written)


def _admin(config: ConnectorConfig, kafka: Kafka) -> AbstractContextManager[OffsetAdmin]:
    from compactory_connectors.source.operations.offset_admin import OffsetAdmin

    return OffsetAdmin.open(config, kafka)


def _stored(
    config: ConnectorConfig, kafka: Kafka, tables: Sequence[str]
) -> tuple[list[tuple[str, StoredOffset | None]], str]:
    """Return the connector's offsets by table, and a hint if it has none."""
    from compactory_connectors.source.offsets.stored_offsets import connectors_like, matching_tables, read_offsets

    everything = read_offsets(kafka)
    own = {item.table: item for item in everything if item.connector == config.name}
    hint = "" if own else connectors_like(config.name, everything)
    listed = ["query"] if config.query is not None else [str(table) for table in config.selection.listed]
    waiting = [name for name in listed if not any(f".{table}".endswith(f".{name}") for table in own)]
    return [(name, own.get(name)) for name in matching_tables([*own, *waiting], tables)], hint
