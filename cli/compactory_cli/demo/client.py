"""Asks the demo's HTTP server as a service would: one connection, kept open."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple

from compactory.errors import Unreachable

__all__ = ["Answer", "Client"]


class Answer(NamedTuple):
    """Status and JSON body of one answer."""

    status: int
    body: Any


class Client:
    """A connection to 127.0.0.1, made again when it breaks. Not thread-safe."""

    def __init__(self, port: int, directory: str) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._entries = f"/v1/directories/{directory}/entries"
        self._connection = HTTPConnection("127.0.0.1", port, timeout=10)

    def path(self, key: str) -> str:
        """The path of an entry; the demo's keys need no quoting."""
        return f"{self._entries}/{key}"

    def entry(self, key: str) -> Answer:
        """Look a key up."""
        return self.get(self.path(key))

    def get(self, path: str) -> Answer:
        """Ask. Raises Unreachable where there is no answer."""
        try:
            self._connection.request("GET", path)
            answer = self._connection.getresponse()
            return Answer(answer.status, json.loads(answer.read()))
        except (OSError, HTTPException, ValueError) as error:
            self.close()
            raise Unreachable("HTTP", f"{self.url}{path} was not answered: {error}") from error

    def close(self) -> None:
        """Close the connection; the next question makes a new one."""
        self._connection.close()
