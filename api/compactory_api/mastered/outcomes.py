"""Outcomes of writes. Processors write them to other directories, with the entry's key and the write's ETag."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote

import orjson
from fastapi import APIRouter, Request, Response

from compactory.directory import Directory
from compactory.errors import ConfigError
from compactory.store import GlobalStore
from compactory.token import Version

from ..http.access import GRANT
from ..http.freshness import wait_of
from ..http.models import Outcome
from ..http.openapi import KEY, parameter, problems
from ..http.problem import MEDIA_TYPE, NoEntry, NoResource, OutcomeFailed, problem
from ..http.request import decode_segment, raw_path
from ..http.response import embedder
from .credential import Answer

__all__ = ["completed", "outcome_routes"]

_FIRST_PAUSE = 0.002  # seconds between two lookups; doubled after each
_MAX_PAUSE = 0.05
_OUTCOMES = b"/outcomes/"
_PENDING = ("pending", None)


async def completed(
    store: GlobalStore, directory: Directory[Any], key: str | None, prefer: str | None, write_answer: Answer
) -> Answer:
    """Return the final answer to a write: the outcome if processors finish it, or 202 if none comes in time.

    An outcome with a field ``error`` says that the processors failed: 424, with the headers of the write.
    """
    if directory.rules is None or not directory.rules.outcomes:
        return write_answer
    status, headers, body = write_answer
    if key is None:
        key = unquote(headers["location"].rpartition("/")[2])
    etag = headers["etag"].strip('"')
    outcome = await _outcome(store, directory, key, etag, prefer)
    path = f"/v1/directories/{quote(directory.name, safe='')}/outcomes/{quote(key, safe='')}?event={quote(etag)}"
    headers = headers | {"compactory-status": path}
    if outcome is None:
        return 202, headers, body
    name, value = outcome
    headers = headers | {"compactory-outcome": name}
    document = orjson.dumps(value)
    error = _error_of(document)
    if error is None:
        return status, headers, document
    refusal = problem(OutcomeFailed(name, key, error, value))
    return refusal.status, headers | {"content-type": MEDIA_TYPE}, refusal.body


def _error_of(outcome: bytes) -> Any:
    """Return the field ``error`` of an outcome; None without one."""
    document = orjson.loads(outcome)
    return document.get("error") if isinstance(document, dict) else None


async def _outcome(
    store: GlobalStore, directory: Directory[Any], key: str, etag: str, prefer: str | None
) -> tuple[str, Any] | None:
    """Return directory and value of the outcome of a write, or of a later write of its key; None without one."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (wait_of(prefer.encode()) if prefer and "wait" in prefer else 0.0)
    pause = _FIRST_PAUSE
    while True:
        for name in directory.rules.outcomes if directory.rules is not None else ():
            with suppress(KeyError, ValueError, ConfigError):  # no entry, no JSON or no version
                entry = store[name].entry(key)
                finished, write = Version.parse(str(orjson.loads(entry.value).get("event"))), Version.parse(etag)
                if finished[:2] == write[:2] and finished.offset >= write.offset:
                    return name, embedder(store[name].directory)(entry.value)
        if loop.time() >= deadline:
            return None
        await asyncio.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE)


def outcome_routes(store: GlobalStore) -> APIRouter:
    """Return the route. It raises the errors in the table of `problem`."""
    routes = APIRouter(prefix="/v1/directories/{directory}", tags=["writes"])

    @routes.get(
        "/outcomes/{key:path}",
        operation_id="get_outcome",
        summary="Show the outcome of a write that processors finish",
        responses={200: {"model": Outcome}, **problems(400, 401, 403, 404, 421, 502, 503)},
        openapi_extra={"parameters": [KEY, parameter("Prefer", "wait=SECONDS")]},
    )
    async def outcome(directory: str, request: Request, event: str | None = None) -> Response:
        view, key = store[directory], decode_segment(raw_path(request.scope).partition(_OUTCOMES)[2])
        if view.directory.rules is None or not view.directory.rules.outcomes:
            raise NoResource(f"directory {directory!r} has no outcomes")
        for name in view.directory.rules.outcomes:
            request.scope[GRANT].demand_read(name)
        if event is None:
            try:
                _, partition, offset, topic_id = view.record(key.encode())
                event = str(Version(topic_id or view.directory.topic, partition, offset))
            except KeyError:
                raise NoEntry(directory, key) from None
        state, value = await _outcome(store, view.directory, key, event, request.headers.get("prefer")) or _PENDING
        body = orjson.dumps({"key": key, "event": event, "state": state, "value": value})
        return Response(body, media_type="application/json", headers={"cache-control": "no-store"})

    return routes
