"""A server in a thread of the test, and a client that sends paths as they are."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from compactory import GlobalStore
from compactory_api.http.access import Access
from compactory_api.http.listen import Listen
from compactory_api.mastered.servers import Servers
from compactory_api.options import ServerOptions
from compactory_api.server import Server
from tests.store.topics import eventually

__all__ = ["SERVERS", "Answer", "Serving", "ask", "ask_raw"]

SERVERS = Servers(secret="of the tests, at least 32 characters", hosts=("127.0.0.1",))


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The last part of the problem's type; the answer has to be a proper problem document."""
        assert self.headers["content-type"] == "application/problem+json", self
        assert self.json["status"] == self.status
        assert self.json["title"]
        return str(self.json["type"]).rpartition(":")[2]


def ask(
    port: int,
    path: str,
    method: str = "GET",
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30,
) -> Answer:
    """Send one request on a connection of its own."""
    connection = HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
    finally:
        connection.close()


def ask_raw(port: int, request: bytes) -> bytes:
    """Send bytes, return what comes back until the server closes or is silent for a moment."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := connection.recv(65536):
            received += part
        return received


class Serving:
    """A server over a store, running in a thread."""

    def __init__(
        self, store: GlobalStore, access: Access, *, proxies: Sequence[str] = (), servers: Servers | None = SERVERS
    ) -> None:
        self.store = store
        self.server = Server(store, access=access, options=ServerOptions(proxies=proxies, servers=servers))
        self._bound = Listen("127.0.0.1", 0).bind()
        self.port: int = self._bound.getsockname()[1]
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.server.run(self._bound)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.failure = error

    def wait_ready(self) -> None:
        eventually(lambda: (self.store.ready and self.server.app.writes.is_started) or self.failure)
        assert self.failure is None, self.failure

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        self.server.stop()
        self._thread.join(30)
        assert self.ended

    def ask(self, path: str, method: str = "GET", **options: Any) -> Answer:
        return ask(self.port, path, method, **options)

    def entry(self, directory: str, key: str, **options: Any) -> Answer:
        """Look a key up whose path is given percent-encoded."""
        return self.ask(f"/v1/directories/{directory}/entries/{key}", **options)

    def batch(self, directory: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask(
            f"/v1/directories/{directory}/entries:batchGet",
            "POST",
            body=content,
            headers={"Content-Type": "application/json"} if headers is None else headers,
        )

    def meanwhile(self, call: Callable[[], Answer]) -> Callable[[], Answer]:
        """Start a request in a thread; return what waits for its answer."""
        outcomes: list[Answer | BaseException] = []

        def run() -> None:
            try:
                outcomes.append(call())
            except BaseException as error:  # noqa: BLE001 - raised again below
                outcomes.append(error)

        thread = threading.Thread(target=run)
        thread.start()

        def result() -> Answer:
            thread.join(40)
            [outcome] = outcomes
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        return result
