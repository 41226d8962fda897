"""Access: static bearer tokens, and a guard against web pages that call a server on the same machine.

A foreign page can point its own host name at 127.0.0.1 (DNS rebinding) and could then read the answers of a local
server. A token prevents that, because the page has none. A server without a token on the loopback interface therefore
answers only requests with a loopback name as Host (421 otherwise).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from itertools import combinations

from compactory.errors import ConfigError

from .problem import Forbidden, Misdirected, Unauthorized

__all__ = ["GRANT", "Access", "Client", "Grant", "Scope", "Tokens", "is_loopback"]

GRANT = "compactory.grant"  # where the ASGI scope has the `Grant` of a request

_LOOPBACK_HOSTS = frozenset({b"localhost", b"127.0.0.1", b"[::1]"})
_MOST_CACHED_HOSTS = 64
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, b64token


class Scope(IntEnum):
    """The rights on a directory; the higher scope includes the lower."""

    NONE = 0
    READ = 1  # entries, status, metadata of bad records
    WRITE = 2  # entries of directories mastered in Kafka
    ADMIN = 3  # raw bytes of bad records


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The rights of a request.

    ``name``     the client or token, as messages and the audit log name it
    ``default``  the scope on directories that ``scopes`` does not list
    """

    name: str
    default: Scope
    scopes: Mapping[str, Scope] = field(default_factory=dict)

    def on(self, directory: str) -> Scope:
        """Return the scope on a directory."""
        return self.scopes.get(directory, self.default)

    def demand_read(self, directory: str) -> None:
        """Raise Forbidden where the directory may not be read."""
        if self.scopes.get(directory, self.default) < Scope.READ:
            raise Forbidden(f"{self.name} may not read directory {directory!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client with a token of its own, and its scope on each directory; ``*`` is any other one."""

    name: str
    token: str = field(repr=False)
    scopes: Mapping[str, Scope]

    def grant(self) -> Grant:
        """Return the rights of the client's requests."""
        return Grant(name=f"client {self.name}", default=self.scopes.get("*", Scope.NONE), scopes=self.scopes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The accepted tokens; None: no token has that scope on all directories. Raises ConfigError for malformed ones."""

    read: str | None = field(default=None, repr=False)
    write: str | None = field(default=None, repr=False)
    admin: str | None = field(default=None, repr=False)
    clients: tuple[Client, ...] = ()

    def __post_init__(self) -> None:
        """Refuse tokens that no header can carry, and one token for two scopes or clients."""
        scopes = [(f"the {scope.name.lower()} token", token) for scope, token in self.by_scope()]
        clients = [(f"the client {client.name}'s token", client.token) for client in self.clients]
        problems = [
            f"{name} must be letters, digits or any of ._~+/- with = only at its end (RFC 6750)"
            for name, token in (*scopes, *clients)
            if not _TOKEN.fullmatch(token)
        ]
        for tokens in (scopes, clients):  # a client program has its own token as the read token
            problems += [
                f"{name} and {second_name} are the same: choose one for each"
                for (name, token), (second_name, second_token) in combinations(tokens, 2)
                if token == second_token
            ]
        if problems:
            raise ConfigError(problems)

    def __bool__(self) -> bool:
        return bool(self.by_scope() or self.clients)

    def by_scope(self) -> list[tuple[Scope, str]]:
        """Return each scope on all directories that has a token, with the token; the lowest scope first."""
        tokens = ((Scope.READ, self.read), (Scope.WRITE, self.write), (Scope.ADMIN, self.admin))
        return [(scope, token) for scope, token in tokens if token is not None]

    @property
    def for_reading(self) -> str | None:
        """The token with the fewest rights that may read; None where there is none or only clients have one."""
        return next((token for _, token in self.by_scope()), None)


class Access:
    """Checks the token and the Host of requests. Thread-safe.

    ``hosts``      the Host headers that are answered, in lower case, without port; None: any
    ``anonymous``  the scope of all requests on a server without tokens

    Raises ConfigError for a client's token that is also the token of a scope.
    """

    def __init__(
        self, tokens: Tokens | None = None, *, hosts: frozenset[bytes] | None = None, anonymous: Scope = Scope.READ
    ) -> None:
        tokens = tokens or Tokens()
        grants = {
            token: Grant(name=f"the {scope.name.lower()} token", default=scope) for scope, token in tokens.by_scope()
        }
        shared = [
            f"{grants[client.token].name} and the client {client.name}'s token are the same: choose one for each"
            for client in tokens.clients
            if client.token in grants
        ]
        if shared:
            raise ConfigError(shared)
        grants |= {client.token: client.grant() for client in tokens.clients}
        # By digest: the duration of a search then shows nothing about a token.
        self._grants = {sha256(b"Bearer " + token.encode()).digest(): grant for token, grant in grants.items()}
        self._hosts = hosts
        self._anonymous = Grant(name="anybody", default=anonymous)
        self._accepted_hosts: set[bytes] = set()

    @property
    def has_tokens(self) -> bool:
        """True if requests need a token."""
        return bool(self._grants)

    @classmethod
    def for_listener(cls, host: str, tokens: Tokens, *, no_auth: bool, anonymous: Scope = Scope.WRITE) -> Access:
        """Return the access of a server that listens on ``host``; ``anonymous`` as in the class.

        Raises ConfigError if other machines could use it without a token and ``no_auth`` does not say so.
        """
        if tokens:
            if no_auth:
                raise ConfigError("--no-auth contradicts COMPACTORY_HTTP_READ_TOKEN or _ADMIN_TOKEN; remove one")
            return cls(tokens)
        if no_auth:
            return cls()
        if is_loopback(host):
            return cls(hosts=_LOOPBACK_HOSTS | {_bracketed(host)}, anonymous=anonymous)
        raise ConfigError(
            f"listening on {host} lets other machines in: set COMPACTORY_HTTP_READ_TOKEN (or _FILE) to ask for a token,"
            " listen on 127.0.0.1, or say --no-auth where the network is trusted"
        )

    def check(self, authorization: bytes | None, host: bytes | None) -> Grant:
        """Return the rights of a request. Raises Unauthorized, Misdirected."""
        if self._hosts is not None and host not in self._accepted_hosts:
            self._check_host(self._hosts, host or b"")
        if not self._grants:
            return self._anonymous
        grant = self._grants.get(sha256(_normalized(authorization or b"")).digest())
        if grant is None:
            raise Unauthorized("send Authorization: Bearer TOKEN" if not authorization else "the token is not valid")
        return grant

    def _check_host(self, hosts: frozenset[bytes], host: bytes) -> None:
        if _without_port(host.lower()) not in hosts:
            raise Misdirected(
                "without a token this server answers only to localhost, 127.0.0.1 and [::1];"
                " set COMPACTORY_HTTP_READ_TOKEN, or say --no-auth where every client is trusted"
            )
        if len(self._accepted_hosts) < _MOST_CACHED_HOSTS:
            self._accepted_hosts.add(host)


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches a listener on ``host``."""
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


def _normalized(authorization: bytes) -> bytes:
    """Return the header with the scheme spelled Bearer: its case does not matter (RFC 9110, 11.1)."""
    scheme, space, token = authorization.partition(b" ")
    return b"Bearer " + token.strip() if space and scheme.lower() == b"bearer" else authorization
