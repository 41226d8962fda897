"""Operators' orders to connectors over HTTP: ``/v1/connectors/…``, with Kafka Connect's words where it has them.

    GET  /v1/connectors                                          the names
    GET  /v1/connectors/{connector}/status                       the state
    PUT  /v1/connectors/{connector}/pause | resume
    POST /v1/connectors/{connector}/restart
    POST /v1/connectors/{connector}/tables/{table}/restart
    POST /v1/connectors/{connector}/tables/{table}/approve       {"removal": "ID"}
    POST /v1/connectors/{connector}/tables/{table}/resend        {"keys_base64": ["…"]}

The answer to an order is 202 and the connector's status. The source's own thread carries the order out later.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, Field

from compactory.worker import Operated, Order, Verb, Worker

from ..http.problem import BadRequest, MethodRefused, NoResource
from ..http.request import decode_segment, parse_body

__all__ = ["CONNECTORS", "Orders"]

CONNECTORS = "/v1/connectors"
_METHODS = {Verb.PAUSE: "PUT", Verb.RESUME: "PUT", Verb.RESTART: "POST", Verb.APPROVE: "POST", Verb.RESEND: "POST"}
_CONNECTOR_VERBS = {Verb.PAUSE, Verb.RESUME, Verb.RESTART}
_TABLE_VERBS = {Verb.RESTART, Verb.APPROVE, Verb.RESEND}


class _Approval(BaseModel):
    removal: str = Field(min_length=1)  # the id that the status shows, so that nothing else is approved


class _Resending(BaseModel):
    keys_base64: list[str] = Field(min_length=1, max_length=10_000)


class Orders:
    """The connectors of a process. Thread-safe. Raises the errors of `problem`'s table."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self._workers = {worker.connector: worker for worker in workers if isinstance(worker, Operated)}

    @staticmethod
    def is_read(method: str, path: str) -> bool:
        """Return True if a request changes nothing."""
        return method in ("GET", "HEAD") and (path == CONNECTORS or path.endswith("/status"))

    def answer(self, method: str, path: str, body: bytes, *, is_admin: bool) -> tuple[int, dict[str, Any]]:
        """Return status and document; only an administrator's has values of rows."""
        parts = [decode_segment(part.encode()) for part in path.removeprefix(CONNECTORS).split("/")[1:]]
        if not parts:
            _check_method(method, "GET, HEAD")
            return 200, {"connectors": sorted(self._workers)}
        worker = self._worker(parts[0])
        if parts[1:] == ["status"]:
            _check_method(method, "GET, HEAD")
            return 200, worker.admin_status() if is_admin else worker.status()
        worker.run_command(_order(method, path, parts[1:], worker, body))
        return 202, worker.status()

    def _worker(self, connector: str) -> Operated:
        try:
            return self._workers[connector]
        except KeyError:
            names = ", ".join(sorted(self._workers)) or "none"
            raise NoResource(f"no connector {connector!r} runs in this process; there are: {names}") from None


def _order(method: str, path: str, parts: list[str], worker: Operated, body: bytes) -> Order:
    table = parts[1] if len(parts) == 3 and parts[0] == "tables" else None
    verbs = _TABLE_VERBS if table is not None else _CONNECTOR_VERBS if len(parts) == 1 else set()
    verb = next((verb for verb in verbs if verb.value == parts[-1]), None)
    if verb is None:
        raise NoResource(f"nothing is at {path}; an order is one of {', '.join(verb.value for verb in Verb)}")
    _check_method(method, _METHODS[verb])
    if table is not None and table not in worker.tables():
        tables = ", ".join(worker.tables()) or "none"
        raise NoResource(f"connector {worker.connector!r} has no table {table!r}; it has: {tables}")
    if verb is Verb.APPROVE:
        return Order(verb=verb, table=table, removal=parse_body(_Approval, body).removal)
    return Order(verb=verb, table=table, keys=_record_keys(body) if verb is Verb.RESEND else ())


def _check_method(method: str, allowed: str) -> None:
    if method not in allowed.split(", "):
        raise MethodRefused(method, allowed)


def _record_keys(body: bytes) -> tuple[bytes, ...]:
    try:
        return tuple(base64.b64decode(key, validate=True) for key in parse_body(_Resending, body).keys_base64)
    except ValueError as error:
        raise BadRequest(f"keys_base64: {error}") from None
