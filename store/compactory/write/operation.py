"""One requested write of an entry. Used by the writer of directories mastered in Kafka and by the HTTP client."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from compactory.errors import WriteRefused

__all__ = ["LONGEST_IDEMPOTENCY_KEY", "Kind", "Operation"]

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
