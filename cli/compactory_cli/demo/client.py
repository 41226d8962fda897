"""An HTTP client of the demo's server with one connection, as a service has it."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple

from compactory.errors import Unreachable

__all__ = ["Answer", "Client"]


class Answer(NamedTuple):
    """Status and JSON body of an answer."""

    status: int
    body: Any


class Client:
    """A connection to 127.0.0.1, opened again after an error. Not thread-safe."""

    def __init__(self, port: int, directory: str) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._entries = f"/v1/directories/{directory}/entries"
        self._connection = HTTPConnection("127.0.0.1", port, timeout=10)

    def path(self, key: str) -> str:
        """Return the path of an entry; the demo's keys need no quoting."""
        return f"{self._entries}/{key}"

    def entry(self, key: str) -> Answer:
        """Look up a key."""
        return self.get(self.path(key))

    def get(self, path: str) -> Answer:
        """Send a GET request. Raises Unreachable if there is no answer."""
        try:
            self._connection.request("GET", path)
            answer = self._connection.getresponse()
            return Answer(answer.status, json.loads(answer.read()))
        except (OSError, HTTPException, ValueError) as error:
            self.close()
            raise Unreachable("HTTP", f"{self.url}{path} was not answered: {error}") from error

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        self._connection.close()
