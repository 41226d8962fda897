"""The console's ASGI application: routes, headers that keep browsers safe, and errors as pages."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from compactory.errors import CompactoryError
from compactory_api.http.access import is_loopback
from compactory_api.http.limits import Budget
from compactory_api.http.problem import NoResource, Unauthorized, problem

from .call import Call
from .options import ConsoleOptions
from .pages import comparison, directory, entry, jobs, outbox, overview, pausing, processors, setup, sinks, source
from .parts import Parts
from .processes import Refused
from .rendering import static_file
from .sessions import COOKIE, Session, Sessions, read_form

__all__ = ["Console"]

log = logging.getLogger("compactory.console")

_HEADERS = {
    b"content-security-policy": b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    b" connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    b"referrer-policy": b"same-origin",
    b"x-content-type-options": b"nosniff",
    b"cross-origin-opener-policy": b"same-origin",
}
_Handler = Callable[[Call], Awaitable[Response]]

_READS: dict[str, _Handler] = {
    "/": overview.overview_page,
    "/live/overview": overview.overview_events,
    "/charts": overview.chart_data,
    "/servers/{server:int}/directories/{directory}": directory.directory_page,
    "/servers/{server:int}/directories/{directory}/entry": entry.entry_page,
    "/servers/{server:int}/directories/{directory}/row": entry.row_part,
    "/servers/{server:int}/directories/{directory}/live": directory.live_page,
    "/servers/{server:int}/directories/{directory}/events": directory.live_events,
    "/servers/{server:int}/errors": directory.errors_page,
    "/servers/{server:int}/sources/{connector}": source.source_page,
    "/compare": comparison.comparison_page,
    "/jobs": jobs.jobs_page,
    "/jobs/chart": jobs.job_chart,
    "/jobs/{job:int}": jobs.job_page,
    "/jobs/confirm": jobs.confirm_page,
    "/outbox": outbox.outbox_page,
    "/sinks": sinks.sinks_page,
    "/processors": processors.processors_page,
    "/setup": setup.setup_page,
    "/log": setup.log_page,
}
_ACTS: dict[str, _Handler] = {
    "/servers/{server:int}/errors": directory.resolve_errors,
    "/servers/{server:int}/sources/{connector}": source.order_source,
    "/jobs": jobs.change_jobs,
    "/outbox": outbox.change_outbox,
    "/sinks": sinks.change_sinks,
    "/processors": processors.change_processors,
    "/pauses": pausing.change_pause,
}


class Console:
    """The application over the processes and the database of its options. Owned by one event loop.

    It begins to ask the processes with its first request, or at the ``lifespan`` event of its server.
    """

    def __init__(self, options: ConsoleOptions) -> None:
        self.budget = Budget()
        self.parts = Parts(options)
        self._prefix = options.prefix
        self._sessions = Sessions(options.access)
        self._routes = Starlette(
            routes=[
                *(Route(path, self._endpoint(handler)) for path, handler in _READS.items()),
                *(Route(path, self._endpoint(handler), methods=["POST"]) for path, handler in _ACTS.items()),
                Route("/sign-in", self._sign_in_page),
                Route("/sign-in", self._sign_in, methods=["POST"]),
                Route("/sign-out", self._sign_out, methods=["POST"]),
                Route("/static/{name}", self._static),
            ],
            exception_handlers={CompactoryError: self._on_error, HTTPException: self._on_error},
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        self.parts.start()
        path, prefix = scope["path"], self._prefix
        if path == prefix or path.startswith(f"{prefix}/"):
            scope = {**scope, "path": path[len(prefix) :] or "/"}

        async def send_safely(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_HEADERS.items()]}
                if not any(name == b"cache-control" for name, _ in message["headers"]):
                    message["headers"].append((b"cache-control", b"no-store"))
            await send(message)

        await self._routes(scope, receive, send_safely)

    async def _live(self, receive: Any, send: Any) -> None:
        while True:
            kind = (await receive())["type"]
            if kind == "lifespan.startup":
                self.parts.start()
            else:
                await self.parts.close()
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return

    def _endpoint(self, handler: _Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                session = self._sessions.of(request)
                form = await read_form(request, session) if request.method == "POST" else {}
                return await handler(Call(self.parts, request, session, form))
            except Exception as error:  # noqa: BLE001 (each has a page)
                return await self._on_error(request, error)

        return endpoint

    async def _sign_in_page(self, request: Request) -> Response:
        return self.parts.pages.page(
            request, None, "sign-in.html", next=_local(request.query_params.get("next")), error=None
        )

    async def _sign_in(self, request: Request) -> Response:
        form = await read_form(request, None)
        target = _local(form.get("next", [""])[0])
        try:
            cookie = self._sessions.open(form.get("token", [""])[0], request.headers.get("host", ""))
        except Unauthorized as error:
            return self.parts.pages.page(request, None, "sign-in.html", code=401, next=target, error=str(error))
        response = RedirectResponse(self._prefix + target, 303)
        is_local = is_loopback(request.url.hostname or "")
        response.set_cookie(
            COOKIE, cookie, path=self._prefix or "/", httponly=True, samesite="strict", secure=not is_local
        )
        return response

    async def _sign_out(self, request: Request) -> Response:
        await read_form(request, self._sessions.of(request))
        self._sessions.close(request)
        return RedirectResponse(f"{self._prefix}/sign-in", 303)

    async def _static(self, request: Request) -> Response:
        response = static_file(request, request.path_params["name"])
        if response is None:
            raise NoResource("nothing is here")
        return response

    async def _on_error(self, request: Request, error: Exception) -> Response:
        if isinstance(error, Unauthorized):
            if "hx-request" in request.headers or request.method == "POST":
                return PlainTextResponse("The session has ended: sign in again.", 401)
            query = f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(self.parts.pages.url("/sign-in", next=request.scope["path"] + query), 303)
        status, title, detail = _described(error)
        session: Session | None = None
        try:
            session = self._sessions.of(request)
        except CompactoryError:
            return PlainTextResponse(f"{title}. {detail}", status)
        is_part = "hx-request" in request.headers
        template = "_problem.html" if is_part else "problem.html"
        return self.parts.pages.page(request, session, template, code=status, title=title, detail=detail, done=None)


def _described(error: Exception) -> tuple[int, str, str]:
    """Return status, title and text of an error."""
    if isinstance(error, HTTPException):
        return error.status_code, "Nothing is here", "The address is wrong, or the page has moved."
    if isinstance(error, Refused):
        return (404 if error.status == 404 else 502), "A process has refused this", str(error)
    if not isinstance(error, CompactoryError):
        log.exception("a page failed", exc_info=error)
        return 500, "The console failed", f"{type(error).__name__}; the log of the console says more"
    return problem(error).status, type(error).__name__, str(error)


def _local(path: str | None) -> str:
    """Return a path of this console; the overview for the address of another site."""
    return path if path and path.startswith("/") and not path.startswith(("//", "/\\")) else "/"
