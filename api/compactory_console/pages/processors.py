"""The page of processors: events that wait or have failed."""

from __future__ import annotations

from starlette.responses import Response

from compactory.errors import CompactoryError, ConfigError
from compactory_connectors.processors import operators
from compactory_connectors.processors.operators import stored_events
from compactory_connectors.processors.pending import StoredEvent

from ..call import Call

__all__ = ["change_processors", "processors_page"]

_SHOWN = 200
_WORKER = "process "  # begins the name of a processor's worker


async def processors_page(call: Call) -> Response:
    """Return the events of each processor that are not done."""
    call.session.demand_read()
    processors: list[tuple[str, list[StoredEvent], str | None]] = []
    for name in _names(call):
        try:
            events = await call.parts.operators.in_kafka(lambda kafka, name=name: stored_events(kafka, name))  # type: ignore[misc]
            processors.append((name, events, None))
        except CompactoryError as error:
            processors.append((name, [], str(error)))
    return call.page("processors.html", processors=processors, shown=_SHOWN)


async def change_processors(call: Call) -> Response:
    """Retry or drop failed events, pause or resume a processor."""
    call.session.demand_admin()
    verb, name = call.field("act"), call.field("processor")
    if name is None or name not in _names(call):
        raise ConfigError(f"there is no processor {name!r}")
    if verb in ("pause", "resume"):
        switch = operators.pause if verb == "pause" else operators.resume
        await call.parts.operators.in_kafka(lambda kafka: switch(kafka, name, by=call.by))
        return call.back("/processors", f"{verb}: processor {name}.")
    if verb not in ("retry", "drop"):
        raise ConfigError("choose retry or drop")
    function = operators.retry if verb == "retry" else operators.drop
    ids = call.form.get("event", [])
    count = await call.parts.operators.in_kafka(lambda kafka: function(kafka, name, ids, by=call.by))
    return call.back("/processors", f"{verb}: {count:,} events.")


def _names(call: Call) -> list[str]:
    """Return the processors of the options, and those whose processes the console knows."""
    workers = (worker["name"] for server in call.parts.servers.processes for worker in server.workers)
    running = {name.removeprefix(_WORKER) for name in workers if name.startswith(_WORKER)}
    return sorted({*call.parts.options.processors, *running})
