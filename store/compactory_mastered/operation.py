"""A wanted write of one entry, and its result."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from compactory.errors import CompactoryError, WriteFailed, WriteRefused
from compactory.token import Token, Version

__all__ = ["LONGEST_IDEMPOTENCY_KEY", "Kind", "Operation", "Written", "failure", "merged"]

Kind = Literal["put", "patch", "delete", "post"]

LONGEST_IDEMPOTENCY_KEY = 255
"""Characters of an Idempotency-Key."""


@dataclass(kw_only=True, slots=True)  # a frozen one takes three times as long to make
class Operation:
    """A requested write.

    ``kind``           ``put`` replaces or creates, ``patch`` merges (RFC 7396), ``delete`` removes, ``post`` creates
    ``key``            the entry's key; None for a ``post`` whose key is derived
    ``value``          a JSON object; for a ``patch`` the merge patch
    ``if_match``       entity tags of which the entry must have one, ``*`` for any; None: no condition
    ``if_none_match``  entity tags of which the entry must have none, ``*``: it must not exist; None: no condition
    ``idempotency_key``  the repeat of an operation with this key gets the first answer; 1 to 255 printable characters
    """

    kind: Kind
    key: str | None = None
    value: Any = field(default=None, repr=False)
    if_match: tuple[str, ...] | None = None
    if_none_match: tuple[str, ...] | None = None
    idempotency_key: str | None = None

    def fingerprint(self) -> str:
        """Return a digest that two operations share only if they are the same. Raises WriteRefused for no JSON."""
        parts = [self.kind, self.key, self.value, self.if_match, self.if_none_match]
        try:
            return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()
        except TypeError as error:
            raise WriteRefused("the value is not JSON, or is nested too deeply") from error

    def check_idempotency_key(self) -> None:
        """Raise WriteRefused unless the Idempotency-Key, if there is one, fits into a record of every topic."""
        key = self.idempotency_key
        if key is not None and not (0 < len(key) <= LONGEST_IDEMPOTENCY_KEY and key.isprintable()):
            raise WriteRefused(f"the Idempotency-Key must have 1 to {LONGEST_IDEMPOTENCY_KEY} printable characters")

    def check_repeat(self, fingerprint: str) -> None:
        """Raise WriteRefused unless this is the operation that its Idempotency-Key was used for."""
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
    """True if an earlier operation was this one, and its answer is given again."""

    @property
    def etag(self) -> str:
        """The entity tag of the entry's record, as lookups over HTTP answer it, without quotes."""
        topic, partition, offset, topic_id = self.token
        return str(Version(topic_id or topic, partition, offset))


def failure(topic: str, key: str | None, error: Exception, *, unknown: bool) -> WriteFailed:
    """Return the error of an operation on a key whose transaction failed."""
    outcome = "nothing was written"
    if unknown:
        outcome = "whether it was written is not known; the same request with an Idempotency-Key tells"
    cause = error if isinstance(error, CompactoryError) else None
    message = f"the write to topic {topic!r} failed: {error if cause else type(error).__name__}; {outcome}"
    return WriteFailed.of_key(message, topic=topic, key=key, unknown=unknown, cause=cause)


def merged(target: Any, patch: Any) -> Any:
    """Return ``target`` with a JSON merge patch applied (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result
