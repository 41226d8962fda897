"""Orders to the demo that runs in this folder, through a socket beside demo.json: a line of JSON each way."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from typing import Any

from compactory.errors import CompactoryError, Unreachable

from ..context.failure import StepFailed
from .home import Home

__all__ = ["Control", "order"]

_PATIENCE = 60.0  # seconds that an order may take, as Postgres may on a slow disk
_MOST = 4096


class Control:
    """The demo's end: takes one order at a time, in the thread that calls `take`."""

    def __init__(self, home: Home) -> None:
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(home.socket))
        home.socket.chmod(0o600)
        self._listening.listen()

    def take(self, handle: Callable[[dict[str, Any]], dict[str, Any]], timeout: float) -> None:
        """Wait ``timeout`` seconds for an order; do it and answer."""
        self._listening.settimeout(timeout)
        try:
            asking, _ = self._listening.accept()
        except TimeoutError:
            return
        with asking, contextlib.suppress(OSError, ValueError):  # who asked may have gone away
            asking.settimeout(2)
            asked = json.loads(asking.recv(_MOST))
            try:
                answer = handle(asked)
            except CompactoryError as error:
                answer = {"error": str(error)}
            asking.sendall(json.dumps(answer).encode() + b"\n")

    def close(self) -> None:
        """Take no more orders."""
        self._listening.close()


def order(home: Home, asked: dict[str, Any]) -> dict[str, Any]:
    """Have the demo of this folder do something and return its answer.

    Raises Unreachable when no demo runs here or it is not ready yet, StepFailed when it could not do it.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(_PATIENCE)
        try:
            asking.connect(str(home.socket))
            asking.sendall(json.dumps(asked).encode())
            answer: dict[str, Any] = json.loads(asking.makefile().readline())
        except (OSError, ValueError) as error:
            raise Unreachable("demo", _why(home)) from error
    if "error" in answer:
        raise StepFailed(answer["error"])
    return answer


def _why(home: Home) -> str:
    owner = home.owner()
    if owner is None:
        return f"no demo runs in this folder ({home.folder.resolve()}); start one with: compactory demo"
    if home.socket.exists():
        return f"the demo (pid {owner}) did not answer; see what it prints"
    return f"the demo (pid {owner}) takes no orders: it is starting, ending, or tells its story (--check)"
