"""The HTTP application: an ASGI callable in front of FastAPI.

It stands in front because every request needs the same steps (access, durations, problems instead of errors), and
because a single lookup must not pay for routing. There are no interactive API pages: those of FastAPI load scripts from
another host, which a server in a closed network can't reach. ``/openapi.json`` works with any viewer.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Mapping
from importlib.metadata import version
from time import perf_counter
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from compactory.errors import CompactoryError
from compactory.store import GlobalStore
from compactory.store_worker import StoreWorker

from .http.access import GRANT, Access
from .http.asgi_server import Send, send_whole
from .http.freshness import Freshness
from .http.limits import HELD_BYTES, Budget, HeldBytes, Threads
from .http.openapi import openapi_document
from .http.problem import Answer, BadRequest, MethodRefused, NoResource, Overloaded, problem
from .http.request import ENTRIES, decode_segment, joined_headers, raw_path, routed_directory
from .mastered.credential import FORWARDED
from .mastered.credential import Answer as WriteAnswer
from .mastered.forwarded_writes import ForwardedWrites
from .mastered.outcomes import outcome_routes
from .mastered.write_routes import write_routes
from .mastered.writes import Writes
from .ops.health import Health
from .ops.metrics import Exposition, RequestMetrics
from .routes.bad_records import error_routes
from .routes.changes import ChangeStreams, change_routes
from .routes.digests import digest_routes
from .routes.entries import entry_routes
from .routes.lookup import Lookup, Lookups, lookup_routes
from .routes.operations import operation_routes

__all__ = ["Application", "create_app"]

log = logging.getLogger("compactory.api")

_FORWARDED = FORWARDED.encode()
_HEADERS = frozenset(
    {b"authorization", b"cache-control", b"compactory-min-offset", b"host", b"if-none-match", b"prefer", _FORWARDED}
)
_CLOSE = (b"connection", b"close")  # while the server drains: the next request of the client needs another server
_OPEN_PATHS = frozenset({b"/livez", b"/readyz", b"/metrics"})
_ALWAYS_ANSWERED = _OPEN_PATHS | {b"/v1/status"}
_LARGE_BYTES = 64 << 10  # smaller answers fit into a connection's buffer
_LOOKUP = "/v1/directories/{directory}/entries/{key}"
_NO_ROUTE = "none"
_READ_METHODS = frozenset({"GET", "HEAD"})
_WRITE_METHODS = frozenset({"PUT", "PATCH", "DELETE"})


def create_app(store: GlobalStore, *, access: Access | None = None) -> Application:
    """Return the ASGI application over a store.

    The caller starts and closes the store; until it is ready, lookups answer 503. Without ``access`` every request is
    allowed: the caller then chooses a safe address.
    """
    return Application(store, access or Access())


class Application:
    """The ASGI callable. A server uses ``health``, ``freshness``, ``streams``, ``threads``, ``writes``, ``budget``."""

    def __init__(self, store: GlobalStore, access: Access) -> None:
        worker = StoreWorker(store)
        self.health = Health([worker])
        self.freshness = Freshness(store)
        self.threads = Threads()
        self.streams = ChangeStreams(self.threads.waits)
        self.writes = Writes(store)
        self._forwarded_writes = ForwardedWrites(self.writes)
        self.budget = Budget()
        self._access = access
        self._metrics = RequestMetrics(self.streams.counts)
        self._lookups = Lookups(store)
        self._lookup_by_path = self._lookups.by_path.get
        self.routes = _fastapi()
        exposition = Exposition([worker], self._metrics)
        for router in (
            lookup_routes(),
            entry_routes(store, self.freshness, self.threads.reads),
            write_routes(self.writes),
            outcome_routes(store),
            change_routes(store, self.streams),
            operation_routes(worker, self.health, exposition, self.threads.metrics),
            error_routes(store, self.threads.waits),
            digest_routes(store, lambda: self.health.stopping),
        ):
            self.routes.include_router(router)

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        """Answer one request. FastAPI answers what is not HTTP."""
        if scope["type"] != "http":
            await self.routes(scope, receive, send)
            return
        start = perf_counter()
        end = 0.0  # when FastAPI's routes began to answer: a stream may last for hours
        route, status = _NO_ROUTE, 500
        answer: Answer | tuple[int, list[tuple[bytes, bytes]], bytes] | None = None  # None after FastAPI has sent it
        try:
            path = raw_path(scope)
            headers = joined_headers(scope["headers"], _HEADERS)
            lookup, key = self._admit(scope, path, headers)
            if lookup is not None and scope["method"] in _READ_METHODS:
                route = _LOOKUP
                if b"compactory-min-offset" in headers:
                    await self.freshness.wait(headers, lookup.topic)
                answer = lookup.answer(key, headers)
            else:
                with HeldBytes(self.budget) as scope[HELD_BYTES]:
                    if _FORWARDED in headers:
                        answer = await _write_answer(self._forwarded_writes.answer(scope, receive))
                    elif lookup is not None:
                        route = _LOOKUP
                        answer = await self._write(lookup.name, key, scope, receive)
                    else:
                        status, route, end = await self._route(scope, receive, send)
        except Exception as error:
            if not isinstance(error, CompactoryError):
                log.exception("a request failed")
            answer = problem(error)
        if answer is not None:
            status, answer_headers, body = answer
            if self.health.stopping:
                answer_headers.append(_CLOSE)
            await send_whole(send, status, answer_headers, body)
        self._metrics.observe(route, status, (end or perf_counter()) - start)

    def _admit(self, scope: Any, path: bytes, headers: Mapping[bytes, bytes]) -> tuple[Lookup | None, bytes]:
        """Check that the request is allowed now. Return the directory and key of an entry's path, else no directory.

        A forwarded request is checked by `ForwardedWrites`. Raises Unauthorized, Forbidden, Misdirected, Overloaded.
        """
        if _FORWARDED in headers:
            return None, b""
        if path not in _OPEN_PATHS:
            scope[GRANT] = self._access.check(headers.get(b"authorization"), headers.get(b"host"))
        if self.budget.is_full and path not in _ALWAYS_ANSWERED:
            self.budget.check()
        directory_path, entries, key = path.partition(ENTRIES)
        lookup = self._lookup_by_path(directory_path)
        if lookup is None and entries:
            lookup = self._lookups.by_escaped_path(directory_path)
        directory = lookup.name if lookup is not None else routed_directory(scope)
        if directory is not None:
            scope[GRANT].demand_read(directory)
        return (lookup if entries else None), key

    async def _write(self, directory: str, key: bytes, scope: Any, receive: Any) -> Answer:
        """Return the answer to a write of one entry. Raises the errors of `problem`'s table."""
        if scope["method"] not in _WRITE_METHODS:
            raise MethodRefused(scope["method"], "DELETE, GET, HEAD, PATCH, PUT")
        kind = scope["method"].lower()
        return await _write_answer(self.writes.single(kind, directory, decode_segment(key), scope, receive))

    async def _route(self, scope: Any, receive: Any, send: Send) -> tuple[int, str, float]:
        """Answer by a route of FastAPI. Return the status, the route's template and when the answer began.

        Raises MethodRefused, _CutOff.
        """
        if scope["method"] == "HEAD" and scope["path"].endswith("/watch"):
            raise MethodRefused("HEAD", "GET")  # the answer would never end
        route_scope = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        answer = _RoutedAnswer(self, scope, send)
        try:
            await self.routes(route_scope, receive, answer.send)
        except Exception as error:
            if answer.status != 500:
                raise _CutOff from error
            log.exception("a request failed")
        route = route_scope.get("route")
        return answer.status, getattr(route, "path_format", _NO_ROUTE), answer.start


class _RoutedAnswer:
    """Sends an answer of FastAPI's routes. Sends a refusal instead where the answer is too large for the budget."""

    def __init__(self, app: Application, scope: Any, send: Send) -> None:
        self.status = 500  # until an answer begins; also what FastAPI sends before it raises an unexpected error
        self.start = 0.0  # by `perf_counter`
        self._app = app
        self._is_limited = raw_path(scope) not in _ALWAYS_ANSWERED
        self._send = send
        self._refusal: Answer | None = None

    async def send(self, message: Any) -> None:
        """Send one message of ASGI."""
        if message["type"] == "http.response.start":
            self.start = perf_counter()
            size = next((int(value) for name, value in message["headers"] if name == b"content-length"), 0)
            if self._is_limited and size > _LARGE_BYTES:
                try:
                    self._app.budget.check(size)
                except Overloaded as error:
                    self._refusal = problem(error)
                    message = {**message, "status": self._refusal.status, "headers": self._refusal.headers}
            if self._app.health.stopping:
                message = {**message, "headers": [*message["headers"], _CLOSE]}
            self.status = message["status"]
        elif self._refusal is not None:
            message = {**message, "body": self._refusal.body}
        await self._send(message)


async def _write_answer(answering: Coroutine[Any, Any, WriteAnswer]) -> Answer:
    status, header_texts, body = await answering
    headers = [(name.encode(), value.encode("latin-1")) for name, value in header_texts.items()]
    if status != 204:
        headers.append((b"content-length", b"%d" % len(body)))
    return Answer(status, headers, body)


class _CutOff(BaseException):
    """An answer failed after it had begun. Only the server can still close the connection."""


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
            HTTPException: _on_http_exception,
            RequestValidationError: _on_invalid_parameter,
            Exception: _on_error,
        },
    )
    app.openapi = lambda: openapi_document(app)  # type: ignore[method-assign]
    return app


async def _on_error(_request: Request, error: Exception) -> Response:
    refusal = problem(error)
    response = Response(refusal.body, refusal.status)
    response.raw_headers = refusal.headers
    return response


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Answer FastAPI's own errors: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return await _on_error(request, MethodRefused(request.method, _allowed_methods(request)))
    return await _on_error(request, NoResource(f"nothing is at {request.url.path}; /openapi.json says what is where"))


def _allowed_methods(request: Request) -> str:
    """Return the methods that the document has for the path; FastAPI has those of one route only."""
    paths: dict[str, dict[str, Any]] = request.app.openapi()["paths"]
    path: str = request.scope["path"]
    operations = [methods for template, methods in paths.items() if compile_path(template)[0].match(path)]
    allowed = {method.upper() for methods in operations for method in methods}
    return ", ".join(sorted(allowed | ({"HEAD"} if "GET" in allowed else set()))) or "GET"


async def _on_invalid_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = []
    for item in error.errors():
        name = ".".join(map(str, item["loc"][1:]))
        is_unknown = item["type"] == "extra_forbidden"
        problems.append(f"unknown parameter {name!r}: see /openapi.json" if is_unknown else f"{name}: {item['msg']}")
    return await _on_error(request, BadRequest(problems))
