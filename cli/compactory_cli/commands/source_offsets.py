"""``compactory source offsets``: what the source has published, table by table, and how to change what it thinks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

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
    from compactory_connectors.source.operations.offset_edit import Change

__all__ = ["app"]

app = typer.Typer(
    name="offsets",
    help="Show, forget, set and move the offsets of a connector.",
    no_args_is_help=True,
)


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """A connector, and tables of it."""

    connector: Connector
    provider: Providers = None
    table: Annotated[
        list[str] | None, option("--table", "TABLE", "Only this table, with or without schema; may be repeated.")
    ] = None

    def begin(self, flags: Flags) -> tuple[ConnectorConfig, Kafka]:
        """The connector and the cluster; problems of both at once."""
        configuration = begin(flags)
        loaded, kafka = all_of(partial(load_connectors, [self.connector], self.provider or ()), configuration.kafka)
        if len(loaded) > 1:
            names = ", ".join(config.name for config in loaded)
            refuse(f"{self.connector}: has several connectors ({names}); write the one you mean into a file of its own")
        return loaded[0], kafka


@dataclass(frozen=True, kw_only=True)
class _Editing:
    """How an edit is made."""

    dry_run: Annotated[
        bool, flag("--dry-run", "Show the offsets before and after and the rows to send; write nothing.")
    ] = False
    yes: Annotated[bool, flag("--yes", "Do not ask on a terminal.", "-y")] = False
    force: Annotated[bool, flag("--force", "Also while a source runs; it continues from the new offset.")] = False

    def run(
        self,
        flags: Flags,
        config: ConnectorConfig,
        admin: OffsetAdmin,
        decide: Callable[[Sequence[StoredOffset]], Sequence[Change]],
        edit: Edit,
    ) -> None:
        """Show what an edit would do, ask, write."""
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
def show(
    flags: Flags,
    chosen: _Chosen,
    count: Annotated[bool, flag("--count", "Count the rows that a poll would send now; asks Postgres.")] = False,
) -> None:
    """Show the offset of every table: how far it got, on which server, when it was written, who edited it.

    Asks Kafka alone, unless rows are to be counted.
    """
    from ..views.offsets_view import show_offsets

    config, kafka = chosen.begin(flags)
    if not count:
        show_offsets(config, *_stored(config, kafka, chosen.table or ()), as_json=flags.json)
        return
    from compactory_connectors.source.offsets.stored_offsets import matching

    with _admin(config, kafka) as admin:
        stored = admin.stored()
        names = matching(list(admin.plans), chosen.table or ())
        found = [(name, stored.get(admin.key(name))) for name in names]
        rows = {name: admin.count(name, item.offset if item else None) for name, item in found}
    show_offsets(config, found, "", rows=rows, as_json=flags.json)


@app.command("reset")
@connector_command
def reset(flags: Flags, chosen: _Chosen, editing: _Editing) -> None:
    """Forget offsets: the next run loads the tables afresh and removes keys that they lack."""
    from compactory_connectors.source.operations.offset_edit import signed

    config, kafka = chosen.begin(flags)
    edit = signed("reset")
    with _admin(config, kafka, alone=editing.force) as admin:
        decide = admin.resets(chosen.table or ())
        editing.run(flags, config, admin, decide, edit)


@app.command("set")
@connector_command
def set_(
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
    to_id: Annotated[int | None, option("--to-id", "ID", "Send from the row with this id on.")] = None,
    to_time: Annotated[str | None, option("--to-time", "TIME", "Send from this time on.")] = None,
    skip: Annotated[bool, flag("--skip", "Skip rows before that offset that were never sent.")] = False,
    editing: _Editing,
) -> None:
    """Set offsets to a place: the next run sends all rows after it, also rows that were sent before.

    It also sends rows that were committed since the last poll, unless --skip is given.
    """
    from compactory_connectors.source.operations.offset_edit import signed

    place = _place(timestamp, incrementing, to_id, to_time)
    config, kafka = chosen.begin(flags)
    given = {"--timestamp": timestamp, "--incrementing": incrementing, "--to-id": to_id, "--to-time": to_time}
    edit = signed(" ".join(["set", *(f"{name} {value}" for name, value in given.items() if value is not None)]))
    with _admin(config, kafka) as admin:
        decide = admin.settings(chosen.table or (), place, edit, skip=skip)
        editing.run(flags, config, admin, decide, edit)


@app.command("import")
@connector_command
def import_(
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
    """
    from compactory_connectors.source.operations.connect_offsets import connector_offsets, read_topic
    from compactory_connectors.source.operations.offset_edit import signed

    if from_connect is None:
        refuse("give --from-connect TOPIC")
    config, kafka = chosen.begin(flags)
    name = connect_name or config.name
    place = f"topic {from_connect!r}"
    offsets = connector_offsets(read_topic(kafka, from_connect), name, place)
    if connect_group_id is not None:
        _warn_of_workers(kafka, connect_group_id)
    edit = signed(f"import of connector {name} from {place}")
    with _admin(config, kafka) as admin:
        decide = admin.imports(chosen.table or (), offsets, edit, by_cursor=by_cursor)
        if left := admin.left(offsets):
            warn(f"{place} has offsets of tables that this connector does not read: {', '.join(left)}")
        editing.run(flags, config, admin, decide, edit)


def _admin(config: ConnectorConfig, kafka: Kafka, *, alone: bool = False) -> AbstractContextManager[OffsetAdmin]:
    from compactory_connectors.source.operations.offset_admin import OffsetAdmin

    return OffsetAdmin.open(config, kafka, alone=alone)


def _stored(
    config: ConnectorConfig, kafka: Kafka, tables: Sequence[str]
) -> tuple[list[tuple[str, StoredOffset | None]], str]:
    """The connector's offsets by table, and a hint where it has none."""
    from compactory_connectors.source.offsets.stored_offsets import connectors_like, matching, read_offsets

    everything = read_offsets(kafka)
    own = {item.table: item for item in everything if item.connector == config.name}
    hint = "" if own else connectors_like(config.name, everything)
    listed = ["query"] if config.query is not None else [str(table) for table in config.selection.listed]
    waiting = [name for name in listed if not any(f".{table}".endswith(f".{name}") for table in own)]
    return [(name, own.get(name)) for name in matching([*own, *waiting], tables)], hint


def _place(timestamp: str | None, incrementing: int | None, to_id: int | None, to_time: str | None) -> Any:
    """Where to go on from. Raises ConfigError for none, or several."""
    from compactory_connectors.source.offsets.offset_parts import Cursor
    from compactory_connectors.source.operations.offset_admin import Place

    from ..views.moment import microseconds

    ways = [timestamp is not None or incrementing is not None, to_id is not None, to_time is not None]
    if sum(ways) != 1:
        refuse("say where to: --timestamp TIME [--incrementing ID], or --to-id ID, or --to-time TIME")
    if to_time is not None:
        return Place(to_time=microseconds("--to-time", to_time))
    if to_id is not None:
        return Place(to_id=to_id)
    micros = microseconds("--timestamp", timestamp) if timestamp is not None else None
    return Place(cursor=Cursor.from_micros(micros, incrementing))


def _warn_of_workers(kafka: Kafka, group: str) -> None:
    from compactory_connectors.source.operations.connect_offsets import live_workers

    alive = live_workers(kafka, group)
    if alive:
        warn(
            f"group {group!r} has {alive} live workers: make sure that the connector itself is stopped"
            " (PUT /connectors/NAME/stop)"
        )
