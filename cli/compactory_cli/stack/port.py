"""TCP ports of 127.0.0.1 for servers of the development stack."""

from __future__ import annotations

import random
import socket
import sys
from pathlib import Path

__all__ = ["answers", "free_port", "is_free"]

_UNPRIVILEGED = 10_000
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 100
_reserved: list[socket.socket] = []  # until this process ends


def free_port(preferred: int | None = None) -> int:
    """Return a free port that no other call returns before this process ends: the preferred one if it is free.

    A bind to port 0 chooses from the ports of outgoing connections, so another connection may take the port before the
    server does. Servers here therefore get lower ports.
    """
    candidates = random.sample(range(_UNPRIVILEGED, max(_first_outgoing(), _UNPRIVILEGED + _TRIES)), _TRIES)
    for port in candidates if preferred is None else (preferred, *candidates):
        if is_free(port) and _reserve(port):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Return True if a server could listen on this port now. An outgoing connection occupies a port too."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: ended connections do not count
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def answers(port: int) -> bool:
    """Return True if a process listens on this port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _reserve(port: int) -> bool:
    """Return True if no process has this port for a server that may not listen yet.

    The mark is a socket with an abstract name, which Linux removes with the process, however that ends. It has the
    same scope as the port: the network namespace.
    """
    if sys.platform != "linux":
        return True
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0compactory-port-{port}")
    except OSError:
        mark.close()
        return False
    _reserved.append(mark)
    return True


def _first_outgoing() -> int:
    try:
        return int(_OUTGOING.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _UNPRIVILEGED
