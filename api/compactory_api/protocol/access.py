"""Access: static bearer tokens, and a guard against web pages that call a server on the same machine.

A foreign page can point its own host name at 127.0.0.1 (DNS rebinding) and could then read the answers of a local
server. A token prevents that, because the page has none. A server without a token on the loopback interface therefore
answers only requests with a loopback name as Host (421 otherwise).
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import combinations

from compactory.errors import ConfigError

from .http_errors import Misdirected, Unauthorized

__all__ = ["Access", "Scope", "Tokens", "is_loopback"]

_LOOPBACK_HOSTS = frozenset({b"localhost", b"127.0.0.1", b"[::1]"})
_MOST_KNOWN = 64
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, b64token


class Scope(IntEnum):
    """The rights of a request; the higher scope includes the lower."""

    READ = 1  # entries, status, metadata of bad records
    WRITE = 2  # entries of directories mastered in Kafka
    ADMIN = 3  # raw bytes of bad records


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The accepted tokens; None: no token has that scope. Raises ConfigError for malformed ones."""

    read: str | None = field(default=None, repr=False)
    write: str | None = field(default=None, repr=False)
    admin: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse tokens that no header can carry, and one token for two scopes."""
        problems = [
            f"the {name} token must be letters, digits or any of ._~+/- with = only at its end (RFC 6750)"
            for name, token in self.given()
            if not _TOKEN.fullmatch(token)
        ]
        for (name, token), (other, same) in combinations(self.given(), 2):
            if token == same:
                problems.append(f"the {name} token and the {other} token are the same: choose one for each")
        if problems:
            raise ConfigError(problems)

    def __bool__(self) -> bool:
        return self.any is not None

    def given(self) -> list[tuple[str, str]]:
        """Return the names of the scopes that have a token, with it."""
        named = (("read", self.read), ("write", self.write), ("admin", self.admin))
        return [(name, token) for name, token in named if token is not None]

    @property
    def any(self) -> str | None:
        """The token with the fewest rights that may read."""
        return next((token for _, token in self.given()), None)


class Access:
    """Decides about requests. Thread-safe.

    ``hosts`` are the Host headers (lower case, without port) that are answered; None: any. ``anonymous`` is the scope
    of all requests where there are no tokens.
    """

    def __init__(
        self, tokens: Tokens | None = None, *, hosts: frozenset[bytes] | None = None, anonymous: Scope = Scope.READ
    ) -> None:
        tokens = tokens or Tokens()
        self._tokens = tuple((b"Bearer " + token.encode(), Scope[name.upper()]) for name, token in tokens.given())
        self._hosts = hosts
        self._anonymous = anonymous
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

    def check(self, authorization: bytes | None, host: bytes | None) -> Scope:
        """Return the scope of the request. Raises Unauthorized, Misdirected."""
        if self._hosts is not None and host not in self._known:
            self._check_host(self._hosts, host or b"")
        if not self._tokens:
            return self._anonymous
        given = _normal(authorization or b"")
        found: Scope | None = None
        for expected, scope in self._tokens:  # always all of them, each in constant time
            if hmac.compare_digest(expected, given):
                found = scope
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
