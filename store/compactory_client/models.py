"""The options and results of calls of the client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypedDict, TypeVar

from compactory.token import Token

__all__ = ["BatchResult", "Outcome", "Selection", "Stored", "WriteOptions", "WriteResult"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored(Generic[T]):
    """An entry of a server.

    ``value``  without the fields that are internal to the directory
    ``etag``   for ``if_match``, without quotes
    ``token``  its record; every store that has read the record returns the entry
    """

    key: str
    value: T = field(repr=False)
    etag: str
    token: Token


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """The result of one operation of a bulk write or a batch. ``created``: there was no entry with this key before."""

    key: str
    etag: str
    token: Token
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The result of a batch: those of its operations, in order, and the cursor that is stored with it."""

    results: Sequence[WriteResult]
    cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a write that processors finish.

    ``state``  ``pending``, or the name of the directory that has the outcome
    ``value``  the value of the outcome; None while it is pending
    """

    state: str
    value: Any = field(repr=False)

    @property
    def pending(self) -> bool:
        """True if processors have not finished the write."""
        return self.state == "pending"


class Selection(TypedDict, total=False):
    """The entries to list.

    ``prefix``  only keys that begin with this
    ``index``   name of an index; only entries whose indexed fields have ``values``
    ``values``  one value for each field of the index, in its order
    """

    prefix: str
    index: str
    values: Sequence[str | float]


class WriteOptions(TypedDict, total=False):
    """Conditions of a write.

    ``if_match``         the entry must have this entity tag; ``*``: it must exist
    ``create``           the entry must not exist
    ``idempotency_key``  a repeat with the same key gets the first answer; by default each call has a new key
    """

    if_match: str | None
    create: bool
    idempotency_key: str | None
