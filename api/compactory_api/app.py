"""The HTTP application: an ASGI callable in front of FastAPI.

It stands in front because every request needs the same steps (access, durations, problems instead of errors), and
because a single lookup must not pay for routing. There are no interactive API pages: those of FastAPI load scripts from
another host, which a server in a closed network can't reach. ``/openapi.json`` works with any viewer.
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

from .answers.change_streams import ChangeStreams
from .http.access import GRANT, Access
from .http.body import HELD_BYTES, Budget, HeldBytes
from .http.errors import BadRequest, MethodRefused, NoResource, Overloaded
from .http.freshness import Freshness
from .http.openapi import openapi_document
from .http.problem import problem
from .http.request import ENTRIES, decode_segment, joined_headers, raw_path, routed_directory
from .http.sending import Send, send_whole
from .http.threads import Threads
from .mastered.credential import FORWARDED
from .mastered.credential import Answer as WriteAnswer
from .mastered.forwarded_writes import ForwardedWrites
from .mastered.outcomes import outcome_routes
from .mastered.writes import Writes, write_routes
from .ops.health import Health
from .ops.metrics import Exposition, RequestMetrics
from .routes.bad_records import error_routes
from .routes.changes import change_routes
from .routes.digests import digest_routes
from .routes.entries import entry_routes
from .routes.lookup import Answer, Lookup, Lookups, lookup_routes
from .routes.operations import operation_routes

__all__ = ["Application", "create_app"]

log = logging.getLogger("compactory.api")

_FORWARDED = FORWARDED.encode()
_HEADERS = frozenset(
    {b"authorization", b"cache-control", b"compactory-min-offset", b"host", b"if-none-match", b"prefer", _FORWARDED}
)
_CLOSE = (b"connection", b"close")  # of a server that drains: it may not answer another request of the client
_OPEN_PATHS = frozenset({b"/livez", b"/readyz", b"/metrics"})
_ALWAYS_ANSWERED = _OPEN_PATHS | {b"/v1/status"}
_LARGE_BYTES = 64 << 10  # smaller answers fit into a connection's buffer
_LOOKUP = "/v1/directories/{directory}/entries/{key}"
_NO_ROUTE = "none"
_READ_METHODS = frozenset({"GET", "HEAD"})
_WRITE_METHODS = frozenset({"PUT", "PATCH", "DELETE"})
_METHODS = _WRITE_METHODS | {"GET", "POST"}


def create_app(store: GlobalStore, *, access: Access | None = None, workers: Sequence[Worker] = ()) -> Application:
    """Return the ASGI application over a store.

    The caller starts and closes the store; until it is ready, lookups answer 503. Without ``access`` every request is
    allowed: the caller then chooses a safe address. ``workers`` appear in status and metrics.
    """
    return Application(store, access or Access(), workers)


class Application:
    """The ASGI callable. A server uses ``health``, ``freshness``, ``streams``, ``threads``, ``writes``, ``budget``."""

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
        self._metrics = RequestMetrics(self.streams.counts)
        self._lookups = Lookups(store)
        self._lookup_by_path = self._lookups.by_path.get
        self.routes = _fastapi()
        exposition = Exposition(self.health.workers, self._metrics)
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
        route = _NO_ROUTE
        answer_headers: list[tuple[bytes, bytes]] | None = None  # None after FastAPI has sent the answer
        body = b""
        answered_at = 0.0  # when FastAPI's routes began to answer: a stream may last for hours
        try:
            path = raw_path(scope)
            headers = joined_headers(scope["headers"], _HEADERS)
            lookup, key = self._admit(scope, path, headers)
            if _FORWARDED in headers:
                with HeldBytes(self.budget) as scope[HELD_BYTES]:
                    status, answer_headers, body = await _write_answer(self._forwarded_writes.answer(scope, receive))
            elif lookup is None:
                with HeldBytes(self.budget) as scope[HELD_BYTES]:
                    status, route, answered_at = await self._route(scope, receive, send)
            elif scope["method"] not in _READ_METHODS:
                route = _LOOKUP
                with HeldBytes(self.budget) as scope[HELD_BYTES]:
                    status, answer_headers, body = await self._write(lookup.name, key, scope, receive)
            else:
                route = _LOOKUP
                status, answer_headers, body = await self._look_up(lookup, key, headers)
        except CompactoryError as error:
            status, answer_headers, body = _refusal(error)
        except Exception as error:
            log.exception("a request failed")
            status, answer_headers, body = _refusal(error)
        if answer_headers is not None:
            if self.health.stopping:
                answer_headers.append(_CLOSE)
            await send_whole(send, status, answer_headers, body)
        self._metrics.observe(route, status, (answered_at or perf_counter()) - start)

    def _admit(self, scope: Any, path: bytes, headers: Mapping[bytes, bytes]) -> tuple[Lookup | None, bytes]:
        """Check that the request is allowed now. Return its directory and key as `_entry` does.

        A forwarded request is checked by `ForwardedWrites`. Raises Unauthorized, Forbidden, Misdirected, Overloaded.
        """
        if _FORWARDED in headers:
            return None, b""
        if path not in _OPEN_PATHS:
            scope[GRANT] = self._access.check(headers.get(b"authorization"), headers.get(b"host"))
        if self.budget.is_full and path not in _ALWAYS_ANSWERED:
            self.budget.check()
        return self._entry(scope, path)

    def _entry(self, scope: Any, path: bytes) -> tuple[Lookup | None, bytes]:
        """Return the directory and the key in the path of an entry; no directory in paths of FastAPI's routes.

        Raises Forbidden if the directory in a path may not be read.
        """
        directory_path, entries, key = path.partition(ENTRIES)
        lookup = self._lookup_by_path(directory_path)
        if lookup is None and entries:
            lookup = self._lookups.by_escaped_path(directory_path)
        directory = lookup.name if lookup is not None else routed_directory(scope)
        if directory is not None:
            scope[GRANT].demand_read(directory)
        return (lookup if entries else None), key

    async def _write(
        self, directory: str, key: bytes, scope: Any, receive: Any
    ) -> tuple[int, list[tuple[bytes, bytes]] | None, bytes]:
        """Return what `_write_answer` does for a write of one entry. Raises the errors of `problem`'s table."""
        if scope["method"] not in _WRITE_METHODS:
            raise MethodRefused(scope["method"], "DELETE, GET, HEAD, PATCH, PUT")
        kind = scope["method"].lower()
        return await _write_answer(self.writes.single(kind, directory, decode_segment(key), scope, receive))

    async def _look_up(self, lookup: Lookup, key: bytes, headers: Mapping[bytes, bytes]) -> Answer:
        if b"compactory-min-offset" in headers:
            await lookup.wait_until_visible(headers, self.freshness)
        return lookup.answer(key, headers)

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
        except ClientDisconnect:
            answer.status = 400  # the client has gone before its body was complete
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
        self._refusal_body: bytes | None = None

    async def send(self, message: Any) -> None:
        """Send one message of ASGI."""
        if message["type"] == "http.response.start":
            self.start = perf_counter()
            message = {**message, **self._status_and_headers(message["status"], message["headers"])}
        elif self._refusal_body is not None:
            message = {**message, "body": self._refusal_body}
        await self._send(message)

    def _status_and_headers(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> dict[str, Any]:
        if self._is_limited and (size := _body_size(headers)) > _LARGE_BYTES:
            try:
                self._app.budget.check(size)
            except Overloaded as error:
                status, headers, self._refusal_body = _refusal(error)
        self.status = status
        return {"status": status, "headers": [*headers, _CLOSE] if self._app.health.stopping else headers}


async def _write_answer(
    answering: Coroutine[Any, Any, WriteAnswer],
) -> tuple[int, list[tuple[bytes, bytes]] | None, bytes]:
    """Return status, headers and body of the answer to a write; no headers if the client has gone."""
    try:
        status, header_texts, body = await answering
    except ClientDisconnect:  # before its body was complete
        return 400, None, b""
    headers = [(name.encode(), value.encode("latin-1")) for name, value in header_texts.items()]
    if status != 204:
        headers.append((b"content-length", b"%d" % len(body)))
    return status, headers, body


class _CutOff(BaseException):
    """An answer failed after it had begun. Only the server can still close the connection."""


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
            HTTPException: _on_http_exception,
            RequestValidationError: _on_invalid_parameter,
            Exception: _on_error,
        },
    )
    app.openapi = lambda: openapi_document(app)  # type: ignore[method-assign]
    return app


async def _on_error(_request: Request, error: Exception) -> Response:
    refusal = problem(error)
    return Response(refusal.body, refusal.status, {name.decode(): value.decode() for name, value in refusal.headers})


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Answer FastAPI's own errors: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = _allowed_methods(request) or (error.headers or {}).get("Allow", "GET")
        return await _on_error(request, MethodRefused(request.method, allowed))
    return await _on_error(request, NoResource(f"nothing is at {request.url.path}; /openapi.json says what is where"))


def _allowed_methods(request: Request) -> str:
    """Return the methods that the document has for the path; FastAPI has those of one route only."""
    paths: dict[str, dict[str, Any]] = request.app.openapi()["paths"]
    path: str = request.scope["path"]
    allowed = {
        method.upper()
        for template, operations in paths.items()
        if compile_path(template)[0].match(path)
        for method in operations
    } & _METHODS
    return ", ".join(sorted(allowed | ({"HEAD"} if "GET" in allowed else set())))


async def _on_invalid_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(map(str, item['loc'][1:]))}: {item['msg']}" for item in error.errors()]
    return await _on_error(request, BadRequest(problems))
