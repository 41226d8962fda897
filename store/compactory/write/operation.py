"""A requested write of one entry, and its result. The writer of mastered directories and the HTTP client share it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from compactory.errors import CompactoryError, WriteFailed, WriteRefused
from compactory.token import Token, Version

__all__ = ["LONGEST_IDEMPOTENCY_KEY", "Kind", "Operation", "Written", "failure"]

Kind = Literal["put", "patch", "delete", "post"]

LONGEST_IDEMPOTENCY_KEY = 255
"""Characters of an Idempotency-Key."""


@dataclass(kw_only=True, slots=True)  # creating a frozen one takes three times as long
class Operation:
    """A requested write.

    ``kind``           ``put`` replaces or creates, ``patch`` merges (RFC 7396), ``delete`` removes, ``post`` creates
    ``key``            the entry's key; None for a ``post`` whose key is derived
    ``value``          a JSON object; for a ``patch`` the merge patch
    ``if_match``       entity tags of which the entry must have one, ``*`` for any; None: no condition
    ``if_none_match``  entity tags of which the entry must have none, ``*``: it must not exist; None: no condition
    ``idempotency_key``  a repeat with the same key gets the first answer; 1 to 255 printable characters
    """

    kind: Kind
    key: str | None = None
    value: Any = field(default=None, repr=False)
    if_match: tuple[str, ...] | None = None
    if_none_match: tuple[str, ...] | None = None
    idempotency_key: str | None = None

    def fingerprint(self) -> str:
        """Return a digest that only equal operations share. Raises WriteRefused if the value is not JSON."""
        parts = [self.kind, self.key, self.value, self.if_match, self.if_none_match]
        try:
            return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()
        except TypeError as error:
            raise WriteRefused("the value is not JSON, or is nested too deeply") from error

    def check_idempotency_key(self) -> None:
        """Raise WriteRefused if there is an Idempotency-Key and it is empty, too long or not printable."""
        key = self.idempotency_key
        if key is not None and not (0 < len(key) <= LONGEST_IDEMPOTENCY_KEY and key.isprintable()):
            raise WriteRefused(f"the Idempotency-Key must have 1 to {LONGEST_IDEMPOTENCY_KEY} printable characters")

    def check_repeat(self, fingerprint: str) -> None:
        """Raise WriteRefused if the Idempotency-Key was first used for an operation with another fingerprint."""
        if fingerprint != self.fingerprint():
            raise WriteRefused("the Idempotency-Key was used for another request; choose a new one for each")


@dataclass(kw_only=True, slots=True)
class Written:
    """The result of a write that is in the log. ``content`` is the value as stored, without internal fields."""

    status: Literal["created", "replaced", "deleted"]
    key: str
    content: bytes | None = field(repr=False)
    token: Token
    repeated: bool = False
    """True if an earlier operation was the same, and this is its answer."""

    @property
    def etag(self) -> str:
        """The ETag of the entry's record as lookups over HTTP return it, without quotes."""
        topic, partition, offset, topic_id = self.token
        return str(Version(topic_id or topic, partition, offset))


def failure(topic: str, key: str | None, error: Exception, *, unknown: bool) -> WriteFailed:
    """Return the error of an operation on a key whose transaction failed."""
    outcome = "nothing was written"
    if unknown:
        outcome = "it may have been written; a repeat with the same Idempotency-Key returns the outcome"
    cause = error if isinstance(error, CompactoryError) else None
    message = f"the write to topic {topic!r} failed: {error if cause else type(error).__name__}; {outcome}"
    return WriteFailed.of_key(message, topic=topic, key=key, unknown=unknown, cause=cause)
