"""The visitors: sessions that begin with a bearer token, and the check that a form comes from a page of the console.

The states of a session: signed in → expired or signed out. The token itself is not kept.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from starlette.requests import Request

from compactory_api.http.access import Access, Grant, Scope
from compactory_api.http.problem import Forbidden, TooLarge, Unauthorized

__all__ = ["COOKIE", "Session", "Sessions", "read_form"]

COOKIE = "compactory_console"
_LIFETIME = 12 * 3600  # seconds
_MOST_SESSIONS = 10_000
_MOST_FORM_BYTES = 1 << 20
_OWN_SITES = frozenset({"same-origin", "none"})


@dataclass(frozen=True, kw_only=True)
class Session:
    """The rights of a visitor. ``csrf`` is a secret that each form of the session's pages carries.

    ``messages`` wait for the next page.
    """

    grant: Grant
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    expires: float = field(default_factory=lambda: time.monotonic() + _LIFETIME)
    messages: deque[str] = field(default_factory=lambda: deque(maxlen=5))

    def take_message(self) -> str | None:
        """Remove and return the oldest message."""
        return self.messages.popleft() if self.messages else None

    @property
    def is_admin(self) -> bool:
        """True if the visitor may change anything."""
        return self.grant.default is Scope.ADMIN

    def can_read(self, directory: str) -> bool:
        """Return True if the visitor may see entries of the directory."""
        return self.grant.on(directory) >= Scope.READ

    def demand_read(self, directory: str | None = None) -> None:
        """Raise Forbidden if the visitor may not see the directory, or with None what belongs to no directory."""
        if directory is not None:
            self.grant.demand_read(directory)
        elif self.grant.default < Scope.READ:
            raise Forbidden(f"{self.grant.name} may read only its directories")

    def demand_admin(self, directory: str | None = None) -> None:
        """Raise Forbidden if the visitor may not change the directory, or with None what belongs to no directory."""
        scope = self.grant.default if directory is None else self.grant.on(directory)
        if scope is not Scope.ADMIN:
            raise Forbidden(f"{self.grant.name} may not do this: it needs the admin scope")


class Sessions:
    """The open sessions. Owned by one event loop."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._sessions: dict[str, Session] = {}
        self._visitor: Session | None = None  # of everybody, where no token is asked for

    def of(self, request: Request) -> Session:
        """Return the session of a request. Raises Unauthorized without one, Misdirected."""
        host = request.headers.get("host", "").encode()
        if not self._access.has_tokens:
            grant = self._access.check(None, host)
            self._visitor = self._visitor or Session(grant=grant)
            return self._visitor
        session = self._sessions.get(request.cookies.get(COOKIE, ""))
        if session is None or session.expires < time.monotonic():
            raise Unauthorized("sign in")
        return session

    def open(self, token: str, host: str) -> str:
        """Begin a session; return the value of its cookie. Raises Unauthorized, Misdirected."""
        grant = self._access.check(b"Bearer " + token.strip().encode(), host.encode())
        opened_at = time.monotonic()
        self._sessions = {name: session for name, session in self._sessions.items() if session.expires > opened_at}
        if len(self._sessions) >= _MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        name = secrets.token_urlsafe(32)
        self._sessions[name] = Session(grant=grant)
        return name

    def close(self, request: Request) -> None:
        """End the session of a request."""
        self._sessions.pop(request.cookies.get(COOKIE, ""), None)


async def read_form(request: Request, session: Session | None) -> dict[str, list[str]]:
    """Return the fields of a form. ``session`` None: the form signs in.

    Raises Forbidden if another site's page sent the form, or a page of another session; TooLarge.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None and site not in _OWN_SITES:
        raise Forbidden("the form was sent by a page of another site")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MOST_FORM_BYTES:
            raise TooLarge(f"a form has {_MOST_FORM_BYTES} bytes at most")
    fields: dict[str, list[str]] = {}
    for name, value in parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True):
        fields.setdefault(name, []).append(value)
    if session is not None and not secrets.compare_digest(fields.pop("csrf", [""])[0].encode(), session.csrf.encode()):
        raise Forbidden("the page is older than this session: load it again")
    return fields
