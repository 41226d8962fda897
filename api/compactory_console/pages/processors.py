"""The page of processors: events that wait or have failed."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from compactory.errors import CompactoryError, ConfigError
from compactory_connectors.processors import operators
from compactory_connectors.processors.operators import stored_events
from compactory_connectors.processors.pending import StoredEvent

from ..call import Call
from ..rendering import counted

__all__ = ["change_processors", "known_processors", "processors_page"]

_SHOWN = 200
_WORKER = "process "  # begins the name of a processor's worker


async def processors_page(call: Call) -> Response:
    """Return the events of each processor that are not done."""
    call.session.demand_read()
    processors: list[tuple[str, list[StoredEvent], str | None]] = []
    for name in known_processors(call):
        try:
            events = await call.parts.operators.in_kafka(lambda kafka, name=name: stored_events(kafka, name))  # type: ignore[misc]
            processors.append((name, events, None))
        except CompactoryError as error:
            processors.append((name, [], str(error)))
    paused = {name: bool(worker.get("paused")) for name, worker in _running(call).items()}
    return call.page("processors.html", processors=processors, paused=paused, shown=_SHOWN)


async def change_processors(call: Call) -> Response:
    """Retry or drop failed events."""
    call.session.demand_admin()
    verb, name = call.field("act"), call.field("processor")
    if name is None or name not in known_processors(call):
        raise ConfigError(f"there is no processor {name!r}")
    ids = call.form.get("event", [])
    if verb not in ("retry", "drop") or not ids:
        raise ConfigError("choose events first, and retry or drop")
    function = operators.retry if verb == "retry" else operators.drop
    count = await call.parts.operators.in_kafka(lambda kafka: function(kafka, name, ids, by=call.by))
    return call.back("/processors", f"{verb}: {counted(count, 'event')}.")


def known_processors(call: Call) -> list[str]:
    """Return the processors of the options, and those whose processes the console knows."""
    return sorted({*call.parts.options.processors, *_running(call)})


def _running(call: Call) -> dict[str, dict[str, Any]]:
    """Return a worker of each processor whose processes the console knows."""
    workers = (worker for server in call.parts.servers.processes for worker in server.workers)
    return {worker["name"].removeprefix(_WORKER): worker for worker in workers if worker["name"].startswith(_WORKER)}
