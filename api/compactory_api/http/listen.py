"""The address of a server, HOST:PORT, and the addresses of proxies in front of it."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass

from compactory.errors import ConfigError

__all__ = ["Listen", "parse_proxies"]


@dataclass(frozen=True, slots=True)
class Listen:
    """A host (a name or an address, IPv6 without brackets) and a port; port 0 takes any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Listen:
        """Read ``HOST:PORT`` or ``[IPV6]:PORT``. Raises ConfigError."""
        host, colon, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if not (host and colon and port.isascii() and port.isdigit() and int(port[:6]) < 65536 and len(port) < 6):
            raise ConfigError(f"--listen {text!r}: must be HOST:PORT such as 127.0.0.1:8080, with a port up to 65535")
        if ":" in host and not bracketed:
            raise ConfigError(f"--listen {text!r}: write an IPv6 address in brackets, such as [::1]:8080")
        return cls(host[1:-1] if bracketed else host, int(port))

    def bind(self) -> socket.socket:
        """Return a listening socket.

        Raises ConfigError if the address is not on this machine, in use, or not allowed.
        """
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
        except (socket.gaierror, UnicodeError) as error:
            raise ConfigError(f"--listen: the host {self.host!r} is not known: {error}") from error
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)
        except OSError as error:
            listener.close()
            raise ConfigError(f"can't listen on {self}: {_reason(error)}") from error
        return listener

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_proxies(text: str) -> tuple[str, ...]:
    """Return the addresses and networks in a list such as ``10.0.0.7, 192.168.0.0/16``. Raises ConfigError."""
    proxies = tuple(address.strip() for address in text.split(",") if address.strip())
    problems = list[str]()
    for address in proxies:
        try:
            ipaddress.ip_network(address)
        except ValueError:
            problems.append(
                f"proxies: {address!r} is not an IP address or network; write such as 10.0.0.7 or 192.168.0.0/16"
            )
    if problems:
        raise ConfigError(problems)
    return proxies


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process uses that port; choose another port with --listen, or 0 for any free one"
    if error.errno == errno.EACCES:
        return "ports below 1024 need the right to bind them; choose a higher one"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address"
    return error.strerror or str(error)
