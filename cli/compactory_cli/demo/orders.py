"""The running demo: takes orders through a socket, stops and starts servers, reports processes that end.

The socket is beside demo.json. Request and response are a line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from typing import TYPE_CHECKING, Any

from compactory.errors import CompactoryError, ConfigError, Unreachable

from ..context.failure import StepFailed
from .home import Home

if TYPE_CHECKING:
    from .narrator import Narrator
    from .stage import Stage

__all__ = ["Orders", "order"]

_PATIENCE = 60.0  # seconds that an order may take, as Postgres may on a slow disk
_MOST = 4096
_LOOK = 0.5  # seconds between looks whether everything runs
_MESSAGES = {  # if the server is in that state already, and after the order
    ("stop", "postgres"): ("Postgres is down already", "Postgres is down; lookups go on"),
    ("start", "postgres"): ("Postgres runs already", "Postgres is back; the source comes back by itself"),
    ("stop", "kafka"): (
        "the broker hangs already",
        "the broker hangs (SIGSTOP), and keeps its topics in memory: clients see an outage, lookups go on",
    ),
    ("start", "kafka"): ("the broker runs already", "the broker goes on, with all its topics"),
}


class Orders:
    """Carries out one order at a time and keeps demo.json up to date. Owned by the thread that owns the stage.

    Postgres is ended in order and started again on its data. The broker's memory is all that it has: ended, it would
    come back without topics. So it is made to hang, which is what clients see of a broker that is cut off.
    """

    def __init__(self, stage: Stage, narrator: Narrator) -> None:
        self._stage = stage
        self._narrator = narrator
        self._running = stage.pids
        self._paused = False
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(stage.home.socket))
        stage.home.socket.chmod(0o600)
        self._listening.listen()
        self._listening.settimeout(_LOOK)

    def keep(self) -> None:
        """Take orders until a signal comes."""
        while True:
            with contextlib.suppress(TimeoutError):
                self._take()
            previous_pids, self._running = self._running, self._stage.pids
            for name in sorted(previous_pids.keys() - self._running.keys()):
                text = f" [yellow]![/] {name} (pid {previous_pids[name]}) has ended; the others go on"
                self._narrator.tell({"ended": name, "pid": previous_pids[name]}, text)
            if previous_pids != self._running:
                self._stage.home.announce(self._stage.describe())

    def close(self) -> None:
        """Close the socket of orders."""
        self._listening.close()

    def _take(self) -> None:
        """Wait for an order, carry it out and answer. Raises TimeoutError if no order comes."""
        connection, _ = self._listening.accept()
        with connection, contextlib.suppress(OSError, ValueError):  # the caller may have gone away
            connection.settimeout(2)
            request = json.loads(connection.recv(_MOST))
            try:
                answer = self._obey(request)
            except CompactoryError as error:
                answer = {"error": str(error)}
            connection.sendall(json.dumps(answer).encode() + b"\n")

    def _obey(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out ``{"action": "stop"|"start", "server": …}`` and return the answer."""
        began = time.perf_counter()
        action, server = request.get("action"), request.get("server")
        if (action, server) not in _MESSAGES:
            raise ConfigError(f"the demo can't {action} {server}")
        try:
            message = self._carry_out(action, server)
        finally:
            self._running = self._stage.pids
            self._stage.home.announce(self._stage.describe())
        order_seconds = round(time.perf_counter() - began, 4)
        answer = {"action": action, "server": server, "result": message, "seconds": order_seconds}
        self._narrator.tell({"order": answer}, f" [cyan]→[/] [bold]{action} {server}[/]: {message}")
        return answer

    def _carry_out(self, action: Any, server: Any) -> str:
        """Carry out an order unless it has been carried out already. Returns a message."""
        postgres, broker = self._stage.postgres, self._stage.broker
        is_up = postgres.running if server == "postgres" else not self._paused
        already, message = _MESSAGES[action, server]
        if is_up == (action == "start"):
            return already
        if server == "postgres":
            (postgres.start if action == "start" else postgres.stop)()
        else:
            (broker.resume if action == "start" else broker.pause)()
            self._paused = action == "stop"
        return message


def order(home: Home, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to the demo of this folder and return its answer.

    Raises Unreachable if no demo runs here or it is not ready yet, StepFailed if the order failed.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE)
        try:
            connection.connect(str(home.socket))
            connection.sendall(json.dumps(request).encode())
            answer: dict[str, Any] = json.loads(connection.makefile().readline())
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
