"""The page of a source: its tables, what is held, and the orders that it takes."""

from __future__ import annotations

from base64 import b64encode
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from compactory.errors import ConfigError

from ..call import Call
from ..verdict import verdict_of_worker

__all__ = ["order_source", "source_page"]

_VERBS = {"pause": "PUT", "resume": "PUT", "restart": "POST"}
_TABLE_VERBS = ("restart", "approve", "resend")


async def source_page(call: Call) -> Response:
    """Return the status of a source; values of rows only for administrators."""
    call.session.demand_read()
    server, connector = call.server(), call.request.path_params["connector"]
    status = await call.parts.servers.ask(server, f"/v1/connectors/{quote(connector, safe='')}/status")
    return call.page(
        "source.html", server=server, connector=connector, status=status, verdict=verdict_of_worker(status)
    )


async def order_source(call: Call) -> Response:
    """Give the source an order."""
    call.session.demand_admin()
    server, connector = call.server(), call.request.path_params["connector"]
    verb, table = call.field("act") or "", call.field("table")
    document: dict[str, Any] | None = None
    if table is None and verb in _VERBS:
        path = verb
    elif table is not None and verb in _TABLE_VERBS:
        path = f"tables/{quote(table, safe='')}/{verb}"
        if verb == "approve":
            document = {"removal": call.field("removal") or ""}
        if verb == "resend":
            keys = (call.field("keys") or "").splitlines()
            document = {"keys_base64": [b64encode(key.encode()).decode() for key in keys if key]}
    else:
        raise ConfigError(f"a source does not know the order {verb!r}")
    method = _VERBS.get(verb, "POST")
    address = f"/v1/connectors/{quote(connector, safe='')}/{path}"
    await call.parts.servers.ask(server, address, method=method, document=document)
    target = "" if table is None else f" table {table}"
    return call.back(f"/servers/{server.number}/sources/{connector}", f"Order given: {verb}{target}.")
