"""Pausing and resuming a type or group of jobs, a topic of the outbox, a sink, or a processor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from starlette.responses import Response

from compactory.errors import ConfigError
from compactory_connectors.jobs import operators as jobs
from compactory_connectors.jobs.statements import open_jobs
from compactory_connectors.outbox import operators as outbox
from compactory_connectors.processors import operators as processors
from compactory_connectors.sink import operators as sinks
from compactory_connectors.sink.statements import open_sink

from ..call import Call
from ..operators import Open, open_outbox_part

__all__ = ["change_pause"]

_PAGES = {"type": "/jobs", "group": "/jobs", "topic": "/outbox", "sink": "/sinks", "processor": "/processors"}

_CONNECT: Mapping[str, Open] = {"type": open_jobs, "group": open_jobs, "topic": open_outbox_part, "sink": open_sink}


async def change_pause(call: Call) -> Response:
    """Pause or resume what the form names."""
    call.session.demand_admin()
    kind, name, verb = call.field("kind") or "", call.field("name") or "", call.field("act") or ""
    if kind not in _PAGES or not name or verb not in ("pause", "resume"):
        raise ConfigError(f"name what to pause or resume: one of {', '.join(_PAGES)}")
    by = call.by

    def switch(connection: psycopg.Connection[Any]) -> Any:
        if kind in ("type", "group"):
            chosen = {"type_": name} if kind == "type" else {"group": name}
            return getattr(jobs, verb)(connection, **chosen, by=by)
        return getattr(outbox if kind == "topic" else sinks, verb)(connection, name, by=by)

    if kind == "processor":
        result = await call.parts.operators.in_kafka(lambda kafka: getattr(processors, verb)(kafka, name, by=by))
    else:
        result = await call.parts.operators.in_database(switch, _CONNECT[kind])
    warning = getattr(result, "warning", None)
    return call.back(_PAGES[kind], f"{verb}: {kind} {name}." + (f" {warning}" if warning else ""))
