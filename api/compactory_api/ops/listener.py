"""The listener of workers: probes, metrics, status and operators' orders.

``/livez /readyz /metrics /v1/status``, and ``/v1/connectors`` of workers that take orders. It has a thread of its own,
so that probes are answered while a worker is busy, and does not need the framework of the HTTP API.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

from compactory.worker import Worker

from ..http.access import Access, Grant, Scope, Tokens, is_loopback
from ..http.errors import Forbidden, MethodRefused, NoResource, Unauthorized
from ..http.listen import Listen
from .health import Health
from .metrics import Exposition
from .orders import CONNECTORS, Orders
from .probe_server import ProbeServer

__all__ = ["Listener"]

log = logging.getLogger("compactory.api")

_PATHS = ("/livez", "/readyz", "/metrics", "/v1/status")


class Listener:
    """Serves the state of workers. ``start`` returns when it listens; ``stop`` is idempotent and complete.

    Probes and metrics need no token. ``/v1/status`` can quote error messages: it needs a token, and on a listener
    without tokens only this machine gets it. Orders need the admin token: without an admin token none is possible.
    """

    def __init__(self, listen: Listen, workers: Sequence[Worker], tokens: Tokens | None = None) -> None:
        self.health = Health(workers)
        self._listen = listen
        self._exposition = Exposition(workers)
        self._orders = Orders(workers)
        tokens = tokens or Tokens()
        self._access = (
            Access.for_listener(listen.host, tokens, no_auth=False) if tokens or is_loopback(listen.host) else None
        )
        self._server: ProbeServer | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> Listen:
        """The address, with the real port."""
        port = self._server.server_address[1] if self._server is not None else self._listen.port
        return Listen(self._listen.host, int(port))

    def start(self) -> None:
        """Bind and serve from now on. Raises ConfigError as `Listen.bind` does."""
        self._server = ProbeServer(self._listen.bind(), self.respond)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="compactory-health", daemon=True
        )
        self._thread.start()
        log.info("health on http://%s", self.address)

    def stop(self) -> None:
        """Stop serving and wait for it."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server = self._thread = None

    def respond(
        self, method: str, path: str, headers: Any, body: Callable[[], bytes]
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Return status, headers and body of a request. Raises the errors of `problem`'s table."""
        if path == CONNECTORS or path.startswith(f"{CONNECTORS}/"):
            grant = self._check(headers)
            if not self._orders.is_read(method, path) and grant.default is not Scope.ADMIN:
                raise Forbidden(
                    "this needs the admin token: set COMPACTORY_HTTP_ADMIN_TOKEN for the source and for the caller"
                )
            return _document(*self._orders.answer(method, path, body))
        if path not in _PATHS:
            raise NoResource(f"nothing is at {path}; there are {', '.join((*_PATHS, CONNECTORS))}")
        if method not in ("GET", "HEAD"):
            raise MethodRefused(method, "GET, HEAD")
        if path == "/metrics":
            text, content_type = self._exposition.render(headers.get("Accept", ""))
            return 200, [("Content-Type", content_type)], text
        if path == "/v1/status":
            self._check(headers)
            return _document(200, self.health.status())
        return _document(*(self.health.liveness() if path == "/livez" else self.health.readiness()))

    def _check(self, headers: Any) -> Grant:
        if self._access is None:
            raise Unauthorized("status is open to this machine only; set COMPACTORY_HTTP_READ_TOKEN to ask for a token")
        authorization, host = headers.get("Authorization"), headers.get("Host")
        return self._access.check(
            authorization.encode("latin-1", "replace") if authorization else None,
            host.encode("latin-1", "replace") if host else None,
        )


def _document(status: int, document: dict[str, Any]) -> tuple[int, list[tuple[str, str]], bytes]:
    headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
    return status, headers, json.dumps(document, ensure_ascii=False).encode()
