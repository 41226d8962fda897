"""The servers that forward writes to each other: their common secret and their hosts. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from compactory.errors import ConfigError

__all__ = ["Servers"]

_SHORTEST_SECRET = 32  # characters
_NAME = re.compile(r"\.?[a-z0-9]([a-z0-9_-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9_-]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The servers with which this server exchanges forwarded writes. Immutable.

    ``secret``  text of 32 characters or more that all these servers have, and nobody else
    ``hosts``   their hosts: names of hosts, ``.DOMAIN`` for all names in it, IP addresses, networks

    Raises ConfigError with every problem at once.
    """

    secret: str = field(repr=False)
    hosts: tuple[str, ...]

    def __post_init__(self) -> None:
        problems = [problem for host in self.hosts if (problem := _host_problem(host)) is not None]
        if len(self.secret) < _SHORTEST_SECRET:
            problems.append(f"servers_secret: has less than {_SHORTEST_SECRET} characters; choose a long random text")
        if not self.hosts:
            problems.append("servers: is missing; name the hosts or networks of the servers, such as 10.0.0.0/8")
        if problems:
            raise ConfigError(problems)

    @classmethod
    def parse(cls, secret: str | None, hosts: str | None) -> Servers | None:
        """Return the servers of a secret and a comma-separated list of hosts; None without both. Raises ConfigError."""
        if secret is None and hosts is None:
            return None
        if secret is None:
            raise ConfigError("servers_secret: is missing; with it servers prove to each other who they are")
        names = [host.strip().lower() for host in (hosts or "").split(",")]
        return cls(secret=secret, hosts=tuple(filter(None, names)))

    def problem_of(self, url: str, own_url: str) -> str | None:
        """Return why writes may not be sent to a server at ``url``; None if they may."""
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        if urlsplit(own_url).scheme == "https" and parts.scheme != "https":
            return f"{url} has no https, as this server's own address {own_url} has"
        if not any(_matches(host, allowed) for allowed in self.hosts):
            return f"{url} is not in [http] servers ({', '.join(self.hosts)})"
        return None


def _host_problem(host: str) -> str | None:
    try:
        ipaddress.ip_network(host)
    except ValueError:
        is_name = _NAME.fullmatch(host) is not None and not host.replace(".", "").isdigit()
        if not is_name:
            return f"servers: {host!r} is no name, .domain, IP address or network such as 10.0.0.0/8"
    return None


def _matches(host: str, allowed: str) -> bool:
    if allowed.startswith("."):
        return host.endswith(allowed)
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(allowed)
    except ValueError:  # one of them is a name; names are not looked up
        return host == allowed
