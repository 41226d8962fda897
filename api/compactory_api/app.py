"""The HTTP application: an ASGI callable in front of FastAPI.

It stands in front because every request needs the same steps (access, timing, mapping of errors), and because a
single lookup must not pay for routing. There are no interactive API pages: those of FastAPI load scripts from another
host. A server in a closed network can't do that, and a server of reference data should not. ``/openapi.json`` works
with any viewer.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from importlib.metadata import version
from time import perf_counter
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path

from compactory.errors import CompactoryError
from compactory.store import GlobalStore
from compactory.store_worker import StoreWorker
from compactory.worker import Worker

from .http.access import GRANT, Access
from .http.budget import HELD_BYTES, Budget, HeldBytes
from .http.errors import BadRequest, MethodRefused, NoResource, Overloaded
from .http.freshness import Freshness
from .http.headers import joined
from .http.openapi import document
from .http.path import ENTRIES, decode_segment, raw_path, routed_directory
from .http.problem import problem
from .http.sending import Send, send_whole
from .http.threads import Threads
from .http.timing import Timing
from .mastered.credential import FORWARDED
from .mastered.credential import Answer as WriteAnswer
from .mastered.forwarded_writes import ForwardedWrites
from .mastered.outcomes import outcome_routes
from .mastered.writes import Writes, write_routes
from .ops.health import Health
from .ops.metrics import Exposition
from .routes.bad_records import error_routes
from .routes.changes import ChangeStreams, change_routes
from .routes.digests import digest_routes
from .routes.entries import entry_routes
from .routes.lookup import Answer, Lookup, Lookups
from .routes.operations import operation_routes

__all__ = ["Application", "create_app"]

log = logging.getLogger("compactory.api")

_FORWARDED = FORWARDED.encode()
_HEADERS = frozenset(
    {b"authorization", b"cache-control", b"compactory-min-offset", b"host", b"if-none-match", b"prefer", _FORWARDED}
)
_CLOSE = (b"connection", b"close")  # of a server that drains: a client's next request would meet its end
_OPEN_PATHS = frozenset({b"/livez", b"/readyz", b"/metrics"})
_ALWAYS_ANSWERED = _OPEN_PATHS | {b"/v1/status"}
_LARGE = 64 << 10  # bytes: a connection's buffer takes smaller answers without being full
_LOOKUP = "/v1/directories/{directory}/entries/{key}"
_NO_ROUTE = "none"
_READING = frozenset({"GET", "HEAD"})
_WRITING = frozenset({"PUT", "PATCH", "DELETE"})
_METHODS = _WRITING | {"GET", "POST"}


def create_app(store: GlobalStore, *, access: Access | None = None, workers: Sequence[Worker] = ()) -> Application:
    """Return the ASGI application over a store.

    The caller starts and closes the store; until it is ready, lookups answer 503. Without ``access`` every request is
    allowed: the caller then chooses a safe address. ``workers`` appear in status and metrics.
    """
    return Application(store, access or Access(), workers)


class Application:
    """The ASGI callable. ``health``, ``freshness``, ``streams`` and ``threads`` are for whoever runs the server."""

    def __init__(self, store: GlobalStore, access: Access, workers: Sequence[Worker]) -> None:
        worker = StoreWorker(store)
        self.health = Health([worker], workers)
        self.freshness = Freshness(store)
        self.threads = Threads()
        self.streams = ChangeStreams(self.threads.waits)
        self.writes = Writes(store)
        self._forwarded_writes = ForwardedWrites(self.writes)
        self.budget = Budget()
        self._access = access
        self._timing = Timing()
        self._lookups = Lookups(store)
        self._lookup_at = self._lookups.by_place.get
        self.routes = _fastapi()
        self.routes.include_router(entry_routes(store, self.freshness, self.threads.reads))
        self.routes.include_router(write_routes(self.writes))
        self.routes.include_router(outcome_routes(store))
        self.routes.include_router(change_routes(store, self.streams))
        exposition = Exposition(self.health.workers, self._timing, self.streams.counts)
        self.routes.include_router(operation_routes(worker, self.health, exposition, self.threads.metrics))
        self.routes.include_router(error_routes(store, self.threads.waits))
        self.routes.include_router(digest_routes(store, lambda: self.health.stopping))

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        """Answer one request; any other kind of ASGI connection is FastAPI's."""
        if scope["type"] != "http":
            await self.routes(scope, receive, send)
            return
        began = perf_counter()
        route = _NO_ROUTE
        answer: list[tuple[bytes, bytes]] | None = None  # for FastAPI's routes, which send their own
        body = b""
        answered = 0.0  # when FastAPI's routes began to answer: a stream may go on for hours
        try:
            path = raw_path(scope)
            headers = joined(scope["headers"], _HEADERS)
            target, key = self._admitted(scope, path, headers)
            if _FORWARDED in headers:
                with HeldBytes(self.budget) as scope[HELD_BYTES]:
                    status, answer, body = await _written(self._forwarded_writes.answer(scope, receive))
            elif target is None:
                with HeldBytes(self.budget) as scope[HELD_BYTES]:
                    status, route, answered = await self._route(scope, receive, send)
            elif scope["method"] not in _READING:
                route = _LOOKUP
                with HeldBytes(self.budget) as scope[HELD_BYTES]:
                    status, answer, body = await self._write(target.name, key, scope, receive)
            else:
                route = _LOOKUP
                status, answer, body = await self._look_up(target, key, headers)
        except CompactoryError as error:
            status, answer, body = _refusal(error)
        except Exception as error:
            log.exception("a request failed")
            status, answer, body = _refusal(error)
        if answer is not None:
            if self.health.stopping:
                answer.append(_CLOSE)
            await send_whole(send, status, answer, body)
        self._timing.observe(route, status, (answered or perf_counter()) - began)

    def _admitted(self, scope: Any, path: bytes, headers: Mapping[bytes, bytes]) -> tuple[Lookup | None, bytes]:
        """Return what `_entry` does for a request that may be made now; a forwarded one is checked with its answer.

        Raises Unauthorized, Forbidden, Misdirected, Overloaded.
        """
        if _FORWARDED in headers:
            return None, b""
        if path not in _OPEN_PATHS:
            scope[GRANT] = self._access.check(headers.get(b"authorization"), headers.get(b"host"))
        if self.budget.is_full and path not in _ALWAYS_ANSWERED:
            self.budget.check()
        return self._entry(scope, path)

    def _entry(self, scope: Any, path: bytes) -> tuple[Lookup | None, bytes]:
        """Return the directory and the key of an entry's path, None for FastAPI's routes. Raises Forbidden."""
        place, entries, key = path.partition(ENTRIES)
        target = self._lookup_at(place)
        if target is None and entries:
            target = self._lookups.spelled_otherwise(place)
        directory = target.name if target is not None else routed_directory(scope)
        if directory is not None:
            scope[GRANT].demand_read(directory)
        return (target if entries else None), key

    async def _write(
        self, directory: str, key: bytes, scope: Any, receive: Any
    ) -> tuple[int, list[tuple[bytes, bytes]] | None, bytes]:
        """Return status, headers and body of the answer to a write of one entry; no headers if nobody reads them.

        Raises the errors of `problem`'s table.
        """
        if scope["method"] not in _WRITING:
            raise MethodRefused(scope["method"], "DELETE, GET, HEAD, PATCH, PUT")
        kind = scope["method"].lower()
        return await _written(self.writes.single(kind, directory, decode_segment(key), scope, receive))

    async def _look_up(self, target: Lookup, key: bytes, headers: Mapping[bytes, bytes]) -> Answer:
        if b"compactory-min-offset" in headers:
            await target.wait_until_visible(headers, self.freshness)
        return target.answer(key, headers)

    async def _route(self, scope: Any, receive: Any, send: Send) -> tuple[int, str, float]:
        """Answer by a route of FastAPI. Return the status, the route's template and when the answer began.

        Raises MethodRefused, _CutOff.
        """
        if scope["method"] == "HEAD" and scope["path"].endswith("/watch"):
            raise MethodRefused("HEAD", "GET")  # it would never end
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        answer = _RoutedAnswer(self, scope, send)
        try:
            await self.routes(inner, receive, answer.send)
        except ClientDisconnect:
            answer.status = 400  # in the middle of its body; nobody reads what is sent
        except Exception as error:
            if answer.status != 500:
                raise _CutOff from error
            log.exception("a request failed")
        route = inner.get("route")
        return answer.status, getattr(route, "path_format", _NO_ROUTE), answer.began


class _RoutedAnswer:
    """An answer of FastAPI's routes on its way to the client. One too large for the budget becomes a refusal."""

    def __init__(self, app: Application, scope: Any, send: Send) -> None:
        self.status = 500  # until an answer begins; also what FastAPI sends before it raises an unexpected error
        self.began = 0.0  # by `perf_counter`
        self._app = app
        self._is_limited = raw_path(scope) not in _ALWAYS_ANSWERED
        self._send = send
        self._refusal: bytes | None = None

    async def send(self, message: Any) -> None:
        """Send one message of ASGI."""
        if message["type"] == "http.response.start":
            self.began = perf_counter()
            message = {**message, **self._start(message["status"], message["headers"])}
        elif self._refusal is not None:
            message = {**message, "body": self._refusal}
        await self._send(message)

    def _start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> dict[str, Any]:
        if self._is_limited and (size := _body_size(headers)) > _LARGE:
            try:
                self._app.budget.check(size)
            except Overloaded as error:
                status, headers, self._refusal = _refusal(error)
        self.status = status
        return {"status": status, "headers": [*headers, _CLOSE] if self._app.health.stopping else headers}


async def _written(
    answering: Coroutine[Any, Any, WriteAnswer],
) -> tuple[int, list[tuple[bytes, bytes]] | None, bytes]:
    """Return status, headers and body of the answer to a write; no headers if nobody reads them."""
    try:
        status, text_headers, body = await answering
    except ClientDisconnect:  # in the middle of its body
        return 400, None, b""
    headers = [(name.encode(), value.encode("latin-1")) for name, value in text_headers.items()]
    if status != 204:
        headers.append((b"content-length", b"%d" % len(body)))
    return status, headers, body


class _CutOff(BaseException):
    """An answer had begun when it failed: a second one must not, and only the server can close the connection."""


def _body_size(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the length of an answer's body by its headers; 0 where it is unknown, as of a stream."""
    return next((int(value) for name, value in headers if name == b"content-length"), 0)


def _refusal(error: Exception) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    refusal = problem(error)
    return refusal.status, refusal.headers, refusal.body


def _fastapi() -> FastAPI:
    app = FastAPI(
        title="Compactory",
        version=version("compactory"),
        description="Reference directories, looked up by key or index.",
        license_info={"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            CompactoryError: _on_error,
            HTTPException: _on_http,
            RequestValidationError: _on_invalid,
            Exception: _on_error,
        },
    )
    app.openapi = document(app)  # type: ignore[method-assign]
    return app


async def _on_error(_request: Request, error: Exception) -> Response:
    refusal = problem(error)
    headers = {name.decode(): value.decode() for name, value in refusal.headers}
    return Response(refusal.body, refusal.status, headers)


async def _on_http(request: Request, error: Exception) -> Response:
    """The framework's own: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return await _on_error(
            request, MethodRefused(request.method, _allowed(request) or (error.headers or {}).get("Allow", "GET"))
        )
    return await _on_error(request, NoResource(f"nothing is at {request.url.path}; /openapi.json says what is where"))


def _allowed(request: Request) -> str:
    """Return the methods that the document has for the path; the framework tells those of one route only."""
    paths: dict[str, dict[str, Any]] = request.app.openapi()["paths"]
    fitting = [methods for template, methods in paths.items() if compile_path(template)[0].match(request.scope["path"])]
    allowed = {method.upper() for methods in fitting for method in methods} & _METHODS
    return ", ".join(sorted(allowed | ({"HEAD"} if "GET" in allowed else set())))


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(str(part) for part in item['loc'][1:])}: {item['msg']}" for item in error.errors()]
    return await _on_error(request, BadRequest(problems))
