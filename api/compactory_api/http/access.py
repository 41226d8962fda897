"""Access: static bearer tokens, and a guard against web pages that call a server on the same machine.

A foreign page can point its own host name at 127.0.0.1 (DNS rebinding) and could then read the answers of a local
server. A token prevents that, because the page has none. A server without a token on the loopback interface therefore
answers only requests with a loopback name as Host (421 otherwise).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from itertools import combinations

from compactory.errors import ConfigError

from .errors import Forbidden, Misdirected, Unauthorized

__all__ = ["GRANT", "Access", "Client", "Grant", "Scope", "Tokens", "is_loopback"]

GRANT = "compactory.grant"  # where the ASGI scope has the `Grant` of a request

_LOOPBACK_HOSTS = frozenset({b"localhost", b"127.0.0.1", b"[::1]"})
_MOST_KNOWN = 64
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, b64token


class Scope(IntEnum):
    """The rights on a directory; the higher scope includes the lower."""

    NONE = 0
    READ = 1  # entries, status, metadata of bad records
    WRITE = 2  # entries of directories mastered in Kafka
    ADMIN = 3  # raw bytes of bad records


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The rights of a request. ``scopes`` has the directories that differ from the ``rest``; ``name`` says who asks."""

    name: str
    rest: Scope
    scopes: Mapping[str, Scope] = field(default_factory=dict)

    def on(self, directory: str) -> Scope:
        """Return the scope on a directory."""
        return self.scopes.get(directory, self.rest)

    def demand_read(self, directory: str) -> None:
        """Raise Forbidden where the directory may not be read."""
        if self.scopes.get(directory, self.rest) < Scope.READ:
            raise Forbidden(f"{self.name} may not read directory {directory!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client with a token of its own, and its scope on each directory; that on ``*`` is for all others."""

    name: str
    token: str = field(repr=False)
    scopes: Mapping[str, Scope]

    def grant(self) -> Grant:
        """Return what it may do."""
        return Grant(name=f"client {self.name}", rest=self.scopes.get("*", Scope.NONE), scopes=self.scopes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The accepted tokens; None: no token has that scope on all directories. Raises ConfigError for malformed ones."""

    read: str | None = field(default=None, repr=False)
    write: str | None = field(default=None, repr=False)
    admin: str | None = field(default=None, repr=False)
    clients: tuple[Client, ...] = ()

    def __post_init__(self) -> None:
        """Refuse tokens that no header can carry, and one token for two scopes or clients."""
        problems = [
            f"the {name} token must be letters, digits or any of ._~+/- with = only at its end (RFC 6750)"
            for name, token in self.given()
            if not _TOKEN.fullmatch(token)
        ]
        named, scopes = self.given(), len(self.scoped())
        problems += [*_shared(named[:scopes]), *_shared(named[scopes:])]  # who asks may have one of a client as its own
        if problems:
            raise ConfigError(problems)

    def __bool__(self) -> bool:
        return bool(self.given())

    def scoped(self) -> list[tuple[Scope, str]]:
        """Return the scopes on all directories that have a token, with it."""
        named = ((Scope.READ, self.read), (Scope.WRITE, self.write), (Scope.ADMIN, self.admin))
        return [(scope, token) for scope, token in named if token is not None]

    def given(self) -> list[tuple[str, str]]:
        """Return the name and the token of each scope and client that has one."""
        clients = [(f"client {client.name}'s", client.token) for client in self.clients]
        return [*((scope.name.lower(), token) for scope, token in self.scoped()), *clients]

    @property
    def any(self) -> str | None:
        """The token with the fewest rights that may read; None where there is none or only clients have one."""
        return next((token for _, token in self.scoped()), None)


class Access:
    """Decides about requests. Thread-safe.

    ``hosts`` are the Host headers (lower case, without port) that are answered; None: any. ``anonymous`` is the scope
    of all requests where there are no tokens. Raises ConfigError for a client's token that is also that of a scope.
    """

    def __init__(
        self, tokens: Tokens | None = None, *, hosts: frozenset[bytes] | None = None, anonymous: Scope = Scope.READ
    ) -> None:
        tokens = tokens or Tokens()
        if problems := _shared(tokens.given()):
            raise ConfigError(problems)
        grants = {token: Grant(name=f"the {scope.name.lower()} token", rest=scope) for scope, token in tokens.scoped()}
        grants |= {client.token: client.grant() for client in tokens.clients}
        # By digest: how long a look takes tells nothing about a token.
        self._grants = {sha256(b"Bearer " + token.encode()).digest(): grant for token, grant in grants.items()}
        self._hosts = hosts
        self._anonymous = Grant(name="anybody", rest=anonymous)
        self._known: set[bytes] = set()  # Host headers found good before

    @classmethod
    def for_listener(cls, host: str, tokens: Tokens, *, no_auth: bool) -> Access:
        """Return the access that fits where a server listens.

        Raises ConfigError where it would be open to the network without anybody having said so.
        """
        if tokens:
            if no_auth:
                raise ConfigError("--no-auth contradicts COMPACTORY_HTTP_READ_TOKEN or _ADMIN_TOKEN; remove one")
            return cls(tokens)
        if no_auth:
            return cls()
        if is_loopback(host):
            return cls(hosts=_LOOPBACK_HOSTS | {_bracketed(host)}, anonymous=Scope.WRITE)
        raise ConfigError(
            f"listening on {host} lets other machines in: set COMPACTORY_HTTP_READ_TOKEN (or _FILE) to ask for a token,"
            " listen on 127.0.0.1, or say --no-auth where the network is trusted"
        )

    def check(self, authorization: bytes | None, host: bytes | None) -> Grant:
        """Return what the request may do. Raises Unauthorized, Misdirected."""
        if self._hosts is not None and host not in self._known:
            self._check_host(self._hosts, host or b"")
        if not self._grants:
            return self._anonymous
        found = self._grants.get(sha256(_normal(authorization or b"")).digest())
        if found is None:
            raise Unauthorized("send Authorization: Bearer TOKEN" if not authorization else "the token is not valid")
        return found

    def _check_host(self, hosts: frozenset[bytes], host: bytes) -> None:
        if _without_port(host.lower()) not in hosts:
            raise Misdirected(
                "without a token this server answers only to localhost, 127.0.0.1 and [::1];"
                " set COMPACTORY_HTTP_READ_TOKEN, or say --no-auth where every client is trusted"
            )
        if len(self._known) < _MOST_KNOWN:
            self._known.add(host)


def _shared(named: Iterable[tuple[str, str]]) -> list[str]:
    return [
        f"the {name} token and the {other} token are the same: choose one for each"
        for (name, token), (other, same) in combinations(named, 2)
        if token == same
    ]


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches a listener on ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _bracketed(host: str) -> bytes:
    return f"[{host}]".encode() if ":" in host and not host.startswith("[") else host.lower().encode()


def _without_port(host: bytes) -> bytes:
    name, colon, port = host.rpartition(b":")
    return name if colon and (port.isdigit() or not port) and (b":" not in name or name.endswith(b"]")) else host


def _normal(authorization: bytes) -> bytes:
    """The scheme is case-insensitive (RFC 9110, 11.1)."""
    scheme, space, token = authorization.partition(b" ")
    return b"Bearer " + token.strip() if space and scheme.lower() == b"bearer" else authorization
