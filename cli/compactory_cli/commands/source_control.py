"""``compactory source status|pause|resume|restart|approve``: look at running sources and give them orders.

The process is asked over HTTP. Without it, status, pause and resume of connector files use Kafka and Postgres.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compactory.errors import Unreachable

from ..context.failure import StepFailed
from ..context.flags import argument, flag, given_flags, option
from ..context.session import Providers, begin_source, confirm, load_connectors, refuse
from ..views.source_view import is_healthy, show_overviews, show_status
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
    configuration = begin_source()
    server = _find_server(configuration, url)
    files = [name for name in names or () if name.endswith(_FILES)]
    unanswered = None
    if server is not None:
        try:
            connectors = _running_connectors(server, names or (), provider)
        except Unreachable as error:
            if not files:
                raise
            unanswered = str(error)
        else:
            show_status(connectors, server.place)
            raise typer.Exit(0 if connectors and all(map(is_healthy, connectors)) else 1)
    if not files or len(files) < len(names or ()):
        refuse(
            "which process? give --url http://HOST:PORT of a source's --listen, set COMPACTORY_URL,"
            " or name connector files to see what Kafka and Postgres know of them"
        )
    from compactory_connectors.source.operations.overview import read_overview

    loaded, kafka = load_connectors(map(Path, files), provider or ()), configuration.kafka()
    overviews = [read_overview(connector, kafka) for connector in loaded]
    show_overviews(overviews, unanswered)
    if not all(overview.target_state.is_paused or overview.publishes for overview in overviews):
        raise typer.Exit(1)


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
    server, connector = _require_connector(begin_source(), url, name, provider)
    show_status([server.order(connector, "restart", table=table)], server.place)


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
    server, connector = _require_connector(begin_source(), url, name, provider)
    held_tables = [
        row
        for row in server.connector(connector)["tables"]
        if row.get("removal") and table in (None, row["table"]) and removal in (None, row["removal"]["id"])
    ]
    if len(held_tables) != 1:
        listed = ", ".join(f"{row['table']} (removal {row['removal']['id']})" for row in held_tables)
        refuse(f"which one? held: {listed}; name the table" if held_tables else _NOTHING_HELD)
    row = held_tables[0]
    if not yes and removal is None:
        changes = row["removal"].get("sample", ())
        sample = "".join(f"\n  {change['key']}: {change.get('old')} → {change.get('new')}" for change in changes)
        question = "Publish these changes?" if row["removal"].get("changed") else "Remove them?"
        subject = f"{row['table']}: {row['detail']}"
        confirm(f"{subject}{sample}\n{question}", f"{subject}; not a terminal: add --removal {row['removal']['id']}")
    approved = row["removal"]["id"]
    status = server.order(connector, "approve", table=row["table"], document={"removal": approved})
    if wants_json():
        show_status([status], server.place)
    else:  # the status is that of before
        say(f"[green]✓[/] {approved} of {row['table']} is approved; the next poll carries it out")


def _set_target(name: str | None, url: str | None, wait: float, provider: Providers, *, paused: bool) -> None:
    """Pause or resume: over HTTP if an address is known, else through the offsets topic."""
    configuration = begin_source()
    if _find_server(configuration, url) is None and name is not None and name.endswith(_FILES):
        _store_targets(configuration, load_connectors([Path(name)], provider or ()), paused=paused)
        return
    server, connector = _require_connector(configuration, url, name, provider)
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
    show_status([status], server.place)


def _store_targets(configuration: Configuration, connectors: Sequence[ConnectorConfig], *, paused: bool) -> None:
    from compactory_connectors.source.offsets.stored_offsets import Target
    from compactory_connectors.source.operations.overview import read_overview, store_target

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


def _require_connector(
    configuration: Configuration, url: str | None, name: str | None, provider: Providers
) -> tuple[RemoteServer, str]:
    """Return the server and the name of the connector: by name, by file, or the only one of the process."""
    server = _find_server(configuration, url, orders=True)
    if server is None:
        refuse(
            "which process? give --url http://HOST:PORT of the source's --listen, or set COMPACTORY_URL;"
            " commands need the admin token: set COMPACTORY_HTTP_ADMIN_TOKEN for the source and here"
        )
    running = [worker["connector"] for worker in _running_connectors(server, [name] if name else [], provider)]
    if len(running) != 1:
        refuse(f"which connector? {server.place} runs: {', '.join(running) or 'none'}")
    return server, str(running[0])


def _running_connectors(server: RemoteServer, names: Sequence[str], provider: Providers) -> list[dict[str, Any]]:
    """Return the connectors of a process, or those of names and files. Raises ConfigError for a missing one."""
    files = [Path(name) for name in names if name.endswith(_FILES)]
    requested = {name for name in names if not name.endswith(_FILES)}
    requested |= {connector.name for connector in load_connectors(files, provider or ())}
    connectors = {worker["connector"]: worker for worker in server.status()["workers"] if "connector" in worker}
    if missing := sorted(requested - connectors.keys()):
        refuse(f"{server.place} does not run {', '.join(missing)}; it runs: {', '.join(connectors) or 'none'}")
    return [worker for name, worker in connectors.items() if not requested or name in requested]
