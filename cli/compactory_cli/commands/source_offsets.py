"""``compactory source offsets``: shows and edits the offsets of a connector's tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ..context.flags import Flags, flag, option
from ..context.loading import Connector, Providers, connector_command, load_connectors
from ..context.session import all_of, begin, refuse
from ..views.terminal import warn

if TYPE_CHECKING:
    from compactory.kafka.client import Kafka
    from compactory_connectors.source.config.connector import ConnectorConfig
    from compactory_connectors.source.offsets.offset_parts import Edit
    from compactory_connectors.source.offsets.stored_offsets import StoredOffset
    from compactory_connectors.source.operations.offset_admin import OffsetAdmin
    from compactory_connectors.source.operations.offset_edit import OffsetChange

__all__ = ["app"]

app = typer.Typer(
    name="offsets",
    help="Show, forget, set and move the offsets of a connector.",
    no_args_is_help=True,
)


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """Options that name a connector and its tables."""

    connector: Connector
    provider: Providers = None
    table: Annotated[
        list[str] | None, option("--table", "TABLE", "Only this table, with or without schema; may be repeated.")
    ] = None

    def begin(self, flags: Flags) -> tuple[ConnectorConfig, Kafka]:
        """Return the connector and the cluster. Raises ConfigError with the problems of both."""
        configuration = begin(flags)
        loaded, kafka = all_of(partial(load_connectors, [self.connector], self.provider or ()), configuration.kafka)
        if len(loaded) > 1:
            names = ", ".join(config.name for config in loaded)
            refuse(f"{self.connector}: has several connectors ({names}); write this connector into its own file")
        return loaded[0], kafka


@dataclass(frozen=True, kw_only=True)
class _Editing:
    """Options of an edit."""

    dry_run: Annotated[
        bool, flag("--dry-run", "Show the offsets before and after and the rows to send; write nothing.")
    ] = False
    yes: Annotated[bool, flag("--yes", "Do not ask on a terminal.", "-y")] = False
    force: Annotated[
        bool, flag("--force", "Edit also while a source runs; the source continues from the new offset.")
    ] = False

    def run(
        self,
        flags: Flags,
        config: ConnectorConfig,
        admin: OffsetAdmin,
        decide: Callable[[Sequence[StoredOffset]], Sequence[OffsetChange]],
        edit: Edit,
    ) -> None:
        """Show the effect of an edit, ask, write."""
        from ..views.offsets_view import show_changes

        previews = admin.preview(decide)
        written = not self.dry_run and bool(previews)
        if written and not flags.json:
            show_changes(config, previews, written=None, as_json=False)
            if not self.yes and sys.stdin.isatty():
                typer.confirm("Write this?", abort=True)
        if written:
            admin.write(decide, edit, force=self.force)
        show_changes(config, previews, written=written, as_json=flags.json)


@app.command("show")
@connector_command
def show_source_offsets(
    flags: Flags,
    chosen: _Chosen,
    count: Annotated[bool, flag("--count", "Count the rows that a poll would send now; asks Postgres.")] = False,
) -> None:
    """Show the offset of every table, its server, when it was written, and who edited it.

    Asks Kafka alone, unless rows are to be counted.

    Example: `compactory source offsets show tenants.json --count`
    """
    from ..views.offsets_view import show_offsets

    config, kafka = chosen.begin(flags)
    if not count:
        show_offsets(config, *_stored(config, kafka, chosen.table or ()), as_json=flags.json)
        return
    from compactory_connectors.source.offsets.stored_offsets import matching_tables

    with _admin(config, kafka) as admin:
        stored = admin.stored()
        names = matching_tables(list(admin.plans), chosen.table or ())
        offsets = [(name, stored.get(admin.key(name))) for name in names]
        rows = {name: admin.count(name, item.offset if item else None) for name, item in offsets}
    show_offsets(config, offsets, "", rows=rows, as_json=flags.json)


@app.command("reset")
@connector_command
def reset(flags: Flags, chosen: _Chosen, editing: _Editing) -> None:
    """Delete offsets: the next run loads the tables again and removes keys that they lack.

    Example: `compactory source offsets reset tenants.json --table tenants --dry-run`
    """
    from compactory_connectors.source.operations.offset_edit import new_edit

    config, kafka = chosen.begin(flags)
    edit = new_edit("reset")
    with _admin(config, kafka, needs_postgres=not editing.force) as admin:
        decide = partial(admin.decide_reset, chosen.table or ())
        editing.run(flags, config, admin, decide, edit)


@app.command("set")
@connector_command
def set_source_offsets(
    flags: Flags,
    chosen: _Chosen,
    *,
    timestamp: Annotated[
        str | None,
        option(
            "--timestamp",
            "TIME",
            "Send from this time on, as Connect would: ISO 8601 (UTC by default), or milliseconds since 1970.",
        ),
    ] = None,
    incrementing: Annotated[
        int | None, option("--incrementing", "ID", "Of rows with that time, only those with a greater id.")
    ] = None,
    to_time: Annotated[str | None, option("--to-time", "TIME", "Send from this time on.")] = None,
    editing: _Editing,
) -> None:
    """Set offsets: the next run sends all rows after that offset, also rows that were sent before.

    It also sends rows that were committed since the last poll.

    Example: `compactory source offsets set tenants.json --to-time 2024-01-31T10:00+02:00`
    """
    from compactory_connectors.source.offsets.offset_parts import Cursor
    from compactory_connectors.source.operations.offset_edit import new_edit

    from ..views.moment import microseconds

    if (timestamp is not None or incrementing is not None) == (to_time is not None):
        refuse("say where to: --timestamp TIME [--incrementing ID], or --to-time TIME")
    option_name, time = ("--timestamp", timestamp) if to_time is None else ("--to-time", to_time)
    cursor = Cursor.from_micros(microseconds(option_name, time) if time is not None else None, incrementing)
    config, kafka = chosen.begin(flags)
    options = {"--timestamp": timestamp, "--incrementing": incrementing, "--to-time": to_time}
    edit = new_edit(" ".join(["set", *(f"{name} {value}" for name, value in options.items() if value is not None)]))
    with _admin(config, kafka) as admin:
        includes_time = to_time is not None

        def decide(stored: Sequence[StoredOffset]) -> list[OffsetChange]:
            return admin.decide_set(chosen.table or (), cursor, edit, stored, includes_time=includes_time)

        editing.run(flags, config, admin, decide, edit)


@app.command("import")
@connector_command
def import_offsets(
    flags: Flags,
    chosen: _Chosen,
    *,
    from_connect: Annotated[
        str | None, option("--from-connect", "TOPIC", "The worker's offset.storage.topic, on this Kafka.")
    ] = None,
    connect_name: Annotated[
        str | None, option("--connect-name", "NAME", "The connector's name in Kafka Connect.")
    ] = None,
    connect_group_id: Annotated[
        str | None, option("--connect-group-id", "GROUP", "The workers' group.id; warn while workers are alive.")
    ] = None,
    by_cursor: Annotated[
        bool, flag("--by-cursor", "Trust Connect's offset; do not compare tables with topics.")
    ] = False,
    editing: _Editing,
) -> None:
    """Continue where Kafka Connect stopped, without losing or repeating a record. Stop its connector first.

    The first run compares every row with the topic: it sends the rows that Connect lost by
    reading too early, and not those that the topic has.

    Example: `compactory source offsets import tenants.json --from-connect connect-offsets --dry-run`
    """
    from compactory_connectors.source.operations.connect_offsets import connector_offsets, read_topic
    from compactory_connectors.source.operations.offset_edit import new_edit

    if from_connect is None:
        refuse("give --from-connect TOPIC")
    config, kafka = chosen.begin(flags)
    name = connect_name or config.name
    where = f"topic {from_connect!r}"
    offsets = connector_offsets(read_topic(kafka, from_connect), name, where)
    if connect_group_id is not None:
        _warn_of_workers(kafka, connect_group_id)
    edit = new_edit(f"import of connector {name} from {where}")
    with _admin(config, kafka) as admin:
        decide = partial(admin.decide_import, chosen.table or (), offsets, edit, by_cursor=by_cursor)
        if unused := admin.unused(offsets):
            warn(f"{where} has offsets of tables that this connector does not read: {', '.join(unused)}")
        editing.run(flags, config, admin, decide, edit)


def _admin(
    config: ConnectorConfig, kafka: Kafka, *, needs_postgres: bool = True
) -> AbstractContextManager[OffsetAdmin]:
    from compactory_connectors.source.operations.offset_admin import OffsetAdmin

    return OffsetAdmin.open(config, kafka, needs_postgres=needs_postgres)


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


def _warn_of_workers(kafka: Kafka, group: str) -> None:
    from compactory_connectors.source.operations.connect_offsets import live_workers

    alive = live_workers(kafka, group)
    if alive:
        warn(
            f"group {group!r} has {alive} live workers: make sure that the connector itself is stopped"
            " (PUT /connectors/NAME/stop)"
        )
