"""The listener of workers: probes, metrics, status and operators' orders.

``/livez /readyz /metrics /v1/status``, and ``/v1/connectors`` of workers that take orders. It has a thread of its own,
so that probes are answered while a worker is busy, and does not need the framework of the HTTP API.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

from compactory.errors import CompactoryError
from compactory.worker import Worker

from ..http.access import Access, Grant, Scope, Tokens, is_loopback
from ..http.asgi_server import AsgiServer, Send, send_whole
from ..http.limits import HELD_BYTES, Budget, HeldBytes, ThreadGroup
from ..http.listen import Listen
from ..http.problem import Answer, Forbidden, MethodRefused, NoResource, Unauthorized, problem
from ..http.request import joined_headers, raw_path, read_body
from .health import Health
from .metrics import Exposition
from .orders import CONNECTORS, Orders

__all__ = ["Listener"]

log = logging.getLogger("compactory.api")

_PATHS = ("/livez", "/readyz", "/metrics", "/v1/status")
_BODY_BYTES = 8 << 20
_THREADS = 4  # for what may take long: metrics, status and orders
_NOT_ADMIN = "this needs the admin token: set COMPACTORY_HTTP_ADMIN_TOKEN for the source and for the caller"


class Listener:
    """Serves the state of workers. ``start`` is called once; it returns when it listens. ``stop`` is idempotent.

    Probes and metrics need no token. ``/v1/status`` can quote error messages: it needs a token, and on a listener
    without tokens only this machine gets it. Orders need the admin token: without an admin token none is possible.
    """

    def __init__(self, listen: Listen, workers: Sequence[Worker], tokens: Tokens | None = None) -> None:
        self.address = listen  # with the real port once it has started
        self.budget = Budget()
        self._health = Health(workers)
        self._exposition = Exposition(workers)
        self._orders = Orders(workers)
        tokens = tokens or Tokens()
        self._access = (
            Access.for_listener(listen.host, tokens, no_auth=False) if tokens or is_loopback(listen.host) else None
        )
        self._threads = ThreadGroup("listener", _THREADS)
        self._server = AsgiServer(self, graceful=1.0)
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Bind and serve from now on. Raises ConfigError as `Listen.bind` does."""
        bound = self.address.bind()
        self.address = Listen(self.address.host, bound.getsockname()[1])
        self._thread = threading.Thread(
            target=self._server.run, args=([bound],), name="compactory-listener", daemon=True
        )
        self._thread.start()
        log.info("health on http://%s", self.address)

    def stop(self) -> None:
        """Stop serving and wait for it."""
        if self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
            self._threads.executor.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        """Answer one request, as an ASGI application."""
        try:
            with HeldBytes(self.budget) as scope[HELD_BYTES]:
                answer = await self._answer(scope, receive)
        except Exception as error:
            if not isinstance(error, CompactoryError):
                log.exception("a request to the listener failed")
            answer = problem(error)
        await send_whole(send, *answer)

    async def _answer(self, scope: Any, receive: Any) -> Answer:
        """Return the answer to a request. Raises the errors of `problem`'s table."""
        method, path = scope["method"], raw_path(scope).decode("latin-1")
        headers = joined_headers(scope["headers"])
        if path == CONNECTORS or path.startswith(f"{CONNECTORS}/"):
            is_admin = self._check(headers).default is Scope.ADMIN
            if not is_admin and not self._orders.is_read(method, path):
                raise Forbidden(_NOT_ADMIN)
            body = await read_body(scope, receive, _BODY_BYTES)
            answer = partial(self._orders.answer, method, path, body, is_admin=is_admin)
            return _document(*await self._threads.run(answer))
        if path not in _PATHS:
            raise NoResource(f"nothing is at {path}; there are {', '.join((*_PATHS, CONNECTORS))}")
        if method not in ("GET", "HEAD"):
            raise MethodRefused(method, "GET, HEAD")
        if path == "/metrics":
            accept = headers.get(b"accept", b"").decode("latin-1")
            text, content_type = await self._threads.run(self._exposition.render, accept)
            return _whole(200, [(b"content-type", content_type.encode())], text)
        if path == "/v1/status":
            self._check(headers)
            return _document(200, await self._threads.run(self._health.status))
        return _document(*(self._health.liveness() if path == "/livez" else self._health.readiness()))

    def _check(self, headers: dict[bytes, bytes]) -> Grant:
        if self._access is None:
            raise Unauthorized("status is open to this machine only; set COMPACTORY_HTTP_READ_TOKEN to ask for a token")
        return self._access.check(headers.get(b"authorization"), headers.get(b"host"))


def _document(status: int, document: dict[str, Any]) -> Answer:
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    return _whole(status, headers, json.dumps(document, ensure_ascii=False).encode())


def _whole(status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> Answer:
    return Answer(status, [*headers, (b"content-length", b"%d" % len(body))], body)
