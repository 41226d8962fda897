"""``compactory source status|pause|resume|restart|approve``: look at running sources and give them orders.

The process is asked over HTTP. Without it, status, pause and resume of connector files use Kafka and Postgres.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..context.flags import argument, flag, given_flags, option
from ..context.loading import Providers, begin_source, load_connectors
from ..context.session import refuse
from ..views.terminal import say, wants_json

if TYPE_CHECKING:
    from compactory_connectors.source.config.connector import ConnectorConfig

    from ..context.configuration import Configuration
    from ..context.remote import RemoteServer

__all__ = ["approve", "pause", "restart", "resume", "show_source_status"]

_LOOK = 0.2  # seconds between two reads of the status
_FILES = (".json", ".properties")
_NOTHING_HELD = "no held removal or change has this id; compactory source status lists them"

_Names = Annotated[list[str] | None, argument("[CONNECTOR…]", "Names, or connector files; default: all.")]
_Name = Annotated[str | None, argument("[CONNECTOR]", "The connector's name or file; default: the process's only one.")]
_Url = Annotated[str | None, option("--url", "URL", "The source's --listen; default: COMPACTORY_URL or _LISTEN.")]
_Table = Annotated[str | None, option("--table", "SCHEMA.TABLE", "Only this table.")]
_Wait = Annotated[float, option("--wait", "SECONDS", "Time to wait for the new state.")]


def show_source_status(names: _Names = None, url: _Url = None, provider: Providers = None) -> None:
    """Show the state of sources, table by table. Exit code 1 if one failed, is held, or does not publish.

    Without a URL, or if no process answers, it looks connector files up in Kafka and Postgres.

    Example: `compactory source status --url http://127.0.0.1:8081`
    """
    from compactory.errors import Unreachable

    from ..views.source_view import is_healthy, show_overviews, show_status

    configuration = begin_source()
    place = _find_server(configuration, url)
    files = [name for name in names or () if name.endswith(_FILES)]
    unanswered = None
    if place is not None:
        try:
            connectors = _status(place, _named(names or (), provider))
        except Unreachable as error:
            if not files:
                raise
            unanswered = str(error)
        else:
            show_status(connectors, place.place)
            _exit(bool(connectors) and all(is_healthy(connector) for connector in connectors))
            return
    if not files or len(files) < len(names or ()):
        refuse(
            "which process? give --url http://HOST:PORT of a source's --listen, set COMPACTORY_URL,"
            " or name connector files to see what Kafka and Postgres know of them"
        )
    from compactory_connectors.source.operations.overview import read_overview

    overviews = [
        read_overview(connector, configuration.kafka())
        for connector in load_connectors(map(Path, files), provider or ())
    ]
    show_overviews(overviews, unanswered)
    _exit(all(overview.target_state.is_paused or overview.publishes for overview in overviews))


def pause(name: _Name = None, url: _Url = None, wait: _Wait = 15.0, provider: Providers = None) -> None:
    """Stop publishing a connector until it is resumed, also after a restart. It keeps its lease.

    Example: `compactory source pause tenants`
    """
    _set_target(name, url, wait, provider, paused=True)


def resume(name: _Name = None, url: _Url = None, wait: _Wait = 15.0, provider: Providers = None) -> None:
    """Resume a paused connector.

    Example: `compactory source resume tenants`
    """
    _set_target(name, url, wait, provider, paused=False)


def restart(name: _Name = None, table: _Table = None, url: _Url = None, provider: Providers = None) -> None:
    """Retry a connector, or one of its tables, at once. Offsets are kept.

    Example: `compactory source restart tenants --table public.tenants`
    """
    server = _require_server(begin_source(), url)
    connector = _find_connector(server, name, provider)
    answer = server.order(connector, "restart", table=table)
    _show_connectors([answer], server)


def approve(
    name: _Name = None,
    table: Annotated[str | None, argument("[TABLE]", "Table with its schema; default: the only one.")] = None,
    removal: Annotated[str | None, option("--removal", "ID", "Only the removal or change of this id.")] = None,
    yes: Annotated[bool, flag("--yes", "Do not ask; without a terminal this or --removal is needed.", "-y")] = False,
    url: _Url = None,
    provider: Providers = None,
) -> None:
    """Approve a held removal, or a held change of many values. Later removals and changes are held again.

    Example: `compactory source approve tenants public.tenants`
    """
    server = _require_server(begin_source(), url)
    connector = _find_connector(server, name, provider)
    held_tables = [
        row
        for row in server.connector(connector)["tables"]
        if row.get("removal") and table in (None, row["table"]) and removal in (None, row["removal"]["id"])
    ]
    if len(held_tables) != 1:
        listed = ", ".join(f"{row['table']} (removal {row['removal']['id']})" for row in held_tables)
        refuse(f"which one? held: {listed}; name the table" if held_tables else _NOTHING_HELD)
    _confirm(held_tables[0], yes=yes or removal is not None)
    approved = {"removal": held_tables[0]["removal"]["id"]}
    answer = server.order(connector, "approve", table=held_tables[0]["table"], document=approved)
    if wants_json():
        _show_connectors([answer], server)
    else:  # the answer's status is that of before
        say(f"[green]✓[/] {approved['removal']} of {held_tables[0]['table']} is approved; the next poll carries it out")


def _set_target(name: str | None, url: str | None, wait: float, provider: Providers, *, paused: bool) -> None:
    """Pause or resume: over HTTP if an address is known, else through the offsets topic."""
    from ..context.failure import StepFailed

    configuration = begin_source()
    if _find_server(configuration, url) is None and name is not None and name.endswith(_FILES):
        _store_targets(configuration, load_connectors([Path(name)], provider or ()), paused=paused)
        return
    server = _require_server(configuration, url)
    connector = _find_connector(server, name, provider)
    status = server.order(connector, "pause" if paused else "resume")
    deadline = time.monotonic() + wait
    while not status["target_stored"] or (status["state"] == "PAUSED") != paused:
        if time.monotonic() >= deadline:  # the order stays
            stored = "" if status["target_stored"] else ", not stored yet"
            state = f"{status['state']}{stored}: {status['detail']}"
            raise StepFailed(f"{connector} has the order, and after {wait:g} s it is {state}")
        time.sleep(_LOOK)
        status = server.connector(connector)
    if (status["target"] == "PAUSED") != paused:
        refuse(f"another order has set the state {status['target']} meanwhile; give the order again")
    _show_connectors([status], server)


def _store_targets(configuration: Configuration, connectors: Sequence[ConnectorConfig], *, paused: bool) -> None:
    from compactory_connectors.source.offsets.stored_offsets import Target
    from compactory_connectors.source.operations.overview import read_overview, store_target

    from ..views.source_view import show_overviews

    kafka = configuration.kafka()
    for connector in connectors:
        store_target(connector, kafka, Target.PAUSED if paused else Target.RUNNING)
    show_overviews([read_overview(connector, kafka) for connector in connectors], None)


def _find_server(configuration: Configuration, url: str | None, *, orders: bool = False) -> RemoteServer | None:
    address = url or configuration.url
    if address is None and not given_flags().kafka and configuration.worker_listen:
        host, _, port = configuration.worker_listen.rpartition(":")
        address = f"http://{'127.0.0.1' if host in ('0.0.0.0', '[::]', '') else host}:{port}"  # noqa: S104 - asked, not bound
    return configuration.server(address, admin=True, orders=orders) if address else None


def _require_server(configuration: Configuration, url: str | None) -> RemoteServer:
    place = _find_server(configuration, url, orders=True)
    if place is None:
        refuse(
            "which process? give --url http://HOST:PORT of the source's --listen, or set COMPACTORY_URL;"
            " commands need the admin token: set COMPACTORY_HTTP_ADMIN_TOKEN for the source and here"
        )
    return place


def _status(server: RemoteServer, names: set[str]) -> list[dict[str, Any]]:
    """Return the connectors of a process, or those of these names. Raises ConfigError for a missing one."""
    connectors = [worker for worker in server.status()["workers"] if "connector" in worker]
    missing = sorted(names - {worker["connector"] for worker in connectors})
    if missing:
        running = ", ".join(worker["connector"] for worker in connectors) or "none"
        refuse(f"{server.place} does not run {', '.join(missing)}; it runs: {running}")
    return [worker for worker in connectors if not names or worker["connector"] in names]


def _find_connector(server: RemoteServer, name: str | None, provider: Providers) -> str:
    """Return the name of the connector: by name, by file, or the only one of the process."""
    running = [worker["connector"] for worker in _status(server, _named([name] if name else [], provider))]
    if len(running) != 1:
        refuse(f"which connector? {server.place} runs: {', '.join(running) or 'none'}")
    return str(running[0])


def _named(names: list[str] | tuple[str, ...], provider: Providers) -> set[str]:
    files = [Path(name) for name in names if name.endswith(_FILES)]
    return {name for name in names if not name.endswith(_FILES)} | {
        connector.name for connector in load_connectors(files, provider or ())
    }


def _confirm(row: dict[str, Any], *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        removal = f"--removal {row['removal']['id']}"
        refuse(f"{row['table']}: {row['detail']}; not a terminal: add {removal}")
    sample = [
        f"\n  {change['key']}: {change.get('old')} → {change.get('new')}" for change in row["removal"].get("sample", ())
    ]
    question = "Publish these changes?" if row["removal"].get("changed") else "Remove them?"
    typer.confirm(f"{row['table']}: {row['detail']}{''.join(sample)}\n{question}", abort=True, err=True)


def _show_connectors(
    connectors: list[dict[str, Any]],
    server: RemoteServer,
) -> None:
    from ..views.source_view import show_status

    show_status(connectors, server.place)


def _exit(is_healthy: bool) -> None:
    if not is_healthy:
        raise typer.Exit(1)
