"""Options of the HTTP server, which the settings file and the flags of ``compactory serve`` fill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .mastered.servers import Servers

__all__ = ["ServerOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of a server that do not change while it runs.

    ``drain``       seconds after SIGTERM in which it still accepts requests, with readiness off for load balancers
    ``graceful``    seconds after ``drain`` that requests under way may take
    ``advertised``  base URL under which other servers reach this one, to forward writes; None: where it listens
    ``servers``     the servers that forward writes to each other; None: this server forwards none
    ``proxies``     addresses and networks whose ``X-Forwarded-For`` is trusted; by default none
    """

    drain: float = 0.0
    graceful: float = 10.0
    advertised: str | None = None
    servers: Servers | None = None
    proxies: Sequence[str] = ()
