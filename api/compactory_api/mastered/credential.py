"""Proofs between servers with a common secret: which client a write comes from, and which server answered. Pure.

A forwarded request carries a credential in place of the client's token. It names the caller and is valid for one
request, for a minute. The answer carries a proof of the server that gave it. Both are HMACs of the common secret, so
the secret itself is never sent.
"""

from __future__ import annotations

import hmac
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_hex

import orjson

from ..http.problem import Unauthorized

__all__ = ["CREDENTIAL", "FORWARDED", "PROOF", "RETURNED_HEADERS", "SENT_HEADERS", "Answer", "Credential", "Signer"]

FORWARDED = "compactory-forwarded"
"""The header of a forwarded request that has its credential."""

PROOF = "compactory-owner"
"""The header of its answer that has the proof of the server."""

CREDENTIAL = "compactory.credential"
"""Key of the `Credential` in the ASGI scope of a forwarded request."""

SENT_HEADERS = ("content-type", "if-match", "if-none-match", "idempotency-key")
RETURNED_HEADERS = ("content-type", "etag", "compactory-offset", "location", "retry-after", "cache-control", "allow")

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""

_VALID_SECONDS = 60.0  # for which a credential is valid; clocks of servers may differ by as much


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A server's statement that a caller may make one write.

    ``caller``  the client, as the audit log names it
    ``digest``  SHA-256 of the request's body
    ``until``   Unix time at which it expires
    ``nonce``   random text that the proof of the answer contains
    """

    caller: str
    digest: str
    until: float
    nonce: str

    @classmethod
    def of(cls, caller: str, body: bytes) -> Credential:
        """Return a new credential for a request with this body."""
        return cls(
            caller=caller, digest=sha256(body).hexdigest(), until=time.time() + _VALID_SECONDS, nonce=token_hex(16)
        )

    def check_body(self, body: bytes) -> None:
        """Raise Unauthorized unless the credential was made for this body."""
        if sha256(body).hexdigest() != self.digest:
            raise Unauthorized("the forwarded request has another body than the one that was signed")


class Signer:
    """Signs credentials and answers, and checks those of other servers. Thread-safe."""

    def __init__(self, secret: str) -> None:
        self._key = sha256(b"compactory forwarded writes\0" + secret.encode()).digest()

    def header(self, credential: Credential, method: str, path: str, headers: Mapping[str, str]) -> str:
        """Return the value of the header FORWARDED of a request."""
        statement = orjson.dumps([credential.caller, credential.digest, credential.until, credential.nonce])
        return f"{urlsafe_b64encode(statement).decode()}.{self._request_signature(statement, method, path, headers)}"

    def credential(self, header: str, method: str, path: str, headers: Mapping[str, str]) -> Credential:
        """Return the credential of a request. Raises Unauthorized if it is not signed with the secret or expired."""
        encoded, _, signature = header.partition(".")
        try:
            statement = urlsafe_b64decode(encoded.encode())
        except ValueError:
            statement = b""
        if not hmac.compare_digest(
            signature.encode(), self._request_signature(statement, method, path, headers).encode()
        ):
            raise Unauthorized("the forwarded request was not signed with this server's servers_secret")
        caller, digest, until, nonce = orjson.loads(statement)
        if not 0 < until - time.time() < 2 * _VALID_SECONDS:
            raise Unauthorized("the forwarded request is too old, or the servers' clocks differ by a minute or more")
        return Credential(caller=caller, digest=digest, until=until, nonce=nonce)

    def proof(self, credential: Credential, url: str, answer: Answer) -> str:
        """Return the value of the header PROOF of the answer of the server at ``url`` to the credential's request."""
        status, headers, body = answer
        return self._signature("answer", credential.nonce, url, status, _selected(headers, RETURNED_HEADERS), body)

    def is_proven(self, proof: str, credential: Credential, url: str, answer: Answer) -> bool:
        """Return True if the server at ``url`` has the secret and gave this answer."""
        return hmac.compare_digest(proof.encode(), self.proof(credential, url, answer).encode())

    def _request_signature(self, statement: bytes, method: str, path: str, headers: Mapping[str, str]) -> str:
        return self._signature("request", method, path, _selected(headers, SENT_HEADERS), statement)

    def _signature(self, *parts: object) -> str:
        message = b"".join(b"%d:%b" % (len(part), part) for part in map(_as_bytes, parts))
        return hmac.new(self._key, message, sha256).hexdigest()


def _selected(headers: Mapping[str, str], names: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(name, headers[name]) for name in names if name in headers]


def _as_bytes(part: object) -> bytes:
    return part if isinstance(part, bytes) else orjson.dumps(part)
