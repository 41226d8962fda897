"""The base URL of a server, as clients and other servers are given it. Pure."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from compactory.errors import ConfigError

__all__ = ["ServerUrl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUrl:
    """The address of a server, and the login that requests carry.

    ``base``           without user, password and trailing slashes
    ``authorization``  the header with the token, or with the URL's user and password for a proxy; None without either
    """

    base: str
    authorization: str | None = field(repr=False)

    @classmethod
    def parse(cls, text: str, token: str | None = None) -> ServerUrl:
        """Read a URL that may have USER:PASSWORD@. Raises ConfigError, which does not repeat these."""
        parts = _split(text)
        if parts is None:
            shown = text.rpartition("@")[2]
            raise ConfigError(f"url: must be http://HOST[:PORT] or https://HOST[:PORT], not {shown!r}")
        login, _, host = parts.netloc.rpartition("@")
        if login and token is not None:
            raise ConfigError("url: has a user, and there is a token; a request carries one of them")
        authorization = f"Bearer {token}" if token is not None else _basic(login) if login else None
        return cls(base=parts._replace(netloc=host).geturl().rstrip("/"), authorization=authorization)


def _split(text: str) -> SplitResult | None:
    """Return the parts of a text; None where paths can't follow it."""
    try:
        parts = urlsplit(text)
        whole = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number up to 65535, or a bracket alone
        return None
    return parts if whole and not (parts.query or parts.fragment) and text.split() == [text] else None


def _basic(login: str) -> str:
    user, _, password = login.partition(":")
    return f"Basic {b64encode(f'{unquote(user)}:{unquote(password)}'.encode()).decode()}"
