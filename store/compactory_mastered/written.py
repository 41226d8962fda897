"""Results of operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from compactory.errors import CompactoryError, WriteFailed
from compactory.token import Token, Version

__all__ = ["Written", "failure"]


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
