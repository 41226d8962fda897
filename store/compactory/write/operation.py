"""Requested writes and their results. The writer of mastered directories and the HTTP client share them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import orjson

from compactory.errors import CompactoryError, WriteFailed, WriteRefused
from compactory.token import Token, Version

__all__ = [
    "DEFAULT_CURSOR",
    "LONGEST_IDEMPOTENCY_KEY",
    "Kind",
    "Operation",
    "OperationBatch",
    "WriterCursor",
    "Written",
    "WrittenBatch",
    "check_cursor_name",
    "failure",
]

Kind = Literal["put", "patch", "delete", "post"]

LONGEST_IDEMPOTENCY_KEY = 255
"""Characters of an Idempotency-Key."""

DEFAULT_CURSOR = "default"
"""Name of a writer's cursor."""

_MAX_BATCH = 100  # operations
_CURSOR_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MAX_CURSOR_BYTES = 4096


class _Repeatable:
    """A request that may have an Idempotency-Key."""

    __slots__ = ()
    idempotency_key: str | None

    def fingerprint(self) -> str:
        """Return a digest that only equal requests share. Raises WriteRefused if a value is not JSON."""
        try:
            return hashlib.sha256(orjson.dumps(self._parts(), option=orjson.OPT_SORT_KEYS)).hexdigest()
        except TypeError as error:
            raise WriteRefused("the value is not JSON, or is nested too deeply") from error

    def _parts(self) -> list[Any]:
        raise NotImplementedError

    def check_idempotency_key(self) -> None:
        """Raise WriteRefused if there is an Idempotency-Key and it is empty, too long or not printable."""
        key = self.idempotency_key
        if key is not None and not (0 < len(key) <= LONGEST_IDEMPOTENCY_KEY and key.isprintable()):
            raise WriteRefused(f"the Idempotency-Key must have 1 to {LONGEST_IDEMPOTENCY_KEY} printable characters")

    def check_repeat(self, fingerprint: str) -> None:
        """Raise WriteRefused if the Idempotency-Key was first used for a request with another fingerprint."""
        if fingerprint != self.fingerprint():
            raise WriteRefused("the Idempotency-Key was used for another request; choose a new one for each")


@dataclass(kw_only=True, slots=True)  # creating a frozen one takes three times as long
class Operation(_Repeatable):
    """A requested write of one entry.

    ``kind``           ``put`` replaces or creates, ``patch`` merges (RFC 7396), ``delete`` removes, ``post`` creates
    ``key``            the entry's key; None for a ``post`` whose key is derived
    ``value``          a JSON object; for a ``patch`` the merge patch
    ``if_match``       entity tags of which the entry must have one, ``*`` for any; None: no condition
    ``if_none_match``  entity tags of which the entry must have none, ``*``: it must not exist; None: no condition
    ``idempotency_key``  a repeat with the same key gets the first answer; 1 to 255 printable characters
    """

    operation_count: ClassVar[int] = 1
    kind: Kind
    key: str | None = None
    value: Any = field(default=None, repr=False)
    if_match: tuple[str, ...] | None = None
    if_none_match: tuple[str, ...] | None = None
    idempotency_key: str | None = None

    def _parts(self) -> list[Any]:
        return [self.kind, self.key, self.value, self.if_match, self.if_none_match]


@dataclass(kw_only=True, slots=True)
class WriterCursor:
    """A text that a writer stores with a batch, such as the position of its feed up to which entries are written.

    ``name``      one of a directory's cursors: letters, digits, ``.``, ``_`` and ``-``, at most 100
    ``expected``  the stored text, otherwise nothing is written; None: none is stored yet
    ``next``      the text to store, at most 4096 bytes of UTF-8
    """

    name: str = DEFAULT_CURSOR
    expected: str | None = None
    next: str

    def check(self) -> None:
        """Raise WriteRefused if a part of the cursor can't be stored."""
        check_cursor_name(self.name)
        for name, text in (("next", self.next), ("expected", self.expected or "")):
            if not isinstance(text, str):
                raise WriteRefused(f"cursor: {name} must be text")
            try:
                size = len(text.encode())
            except UnicodeEncodeError as error:
                raise WriteRefused(f"cursor: {name} has half of a surrogate pair; send valid Unicode") from error
            if size > _MAX_CURSOR_BYTES:
                raise WriteRefused(f"cursor: {name} has {size} bytes; at most {_MAX_CURSOR_BYTES} are stored")


def check_cursor_name(name: object) -> None:
    """Raise WriteRefused if a cursor can't have this name."""
    if not isinstance(name, str) or not _CURSOR_NAME.fullmatch(name):
        raise WriteRefused(
            "cursor: name must be 1 to 100 letters, digits, dots, hyphens and underscores, the first a letter or digit"
        )


@dataclass(kw_only=True, slots=True)
class OperationBatch(_Repeatable):
    """1 to 100 operations on different keys, of which all are written or none. They have no Idempotency-Key."""

    key: ClassVar[None] = None
    operations: Sequence[Operation]
    cursor: WriterCursor | None = None
    idempotency_key: str | None = None

    @property
    def operation_count(self) -> int:
        """Number of operations."""
        return len(self.operations)

    def check(self) -> None:
        """Raise WriteRefused for a wrong number of operations, an Idempotency-Key in one of them, or a bad cursor."""
        if not 1 <= len(self.operations) <= _MAX_BATCH:
            raise WriteRefused(f"a batch has 1 to {_MAX_BATCH} operations; this one has {len(self.operations)}")
        if any(operation.idempotency_key is not None for operation in self.operations):
            raise WriteRefused("an operation of a batch has no Idempotency-Key: give it to the batch")
        if self.cursor is not None:
            self.cursor.check()

    def _parts(self) -> list[Any]:
        cursor = self.cursor
        operations = [operation.fingerprint() for operation in self.operations]
        return [operations, None if cursor is None else [cursor.name, cursor.expected, cursor.next]]


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


@dataclass(kw_only=True, slots=True)
class WrittenBatch:
    """The result of a batch that is in the log.

    ``results``   of the operations, in order. Their ``content`` is None
    ``cursor``    the text that is stored under the name of the batch's cursor; None without a cursor
    ``repeated``  True if an earlier batch was the same, and this is its answer
    """

    results: Sequence[Written]
    cursor: str | None = None
    repeated: bool = False

    @property
    def tokens(self) -> list[Token]:
        """The last record of the batch in each partition: a store that has read them has the whole batch."""
        last: dict[int, Token] = {}
        for result in self.results:
            previous = last.setdefault(result.token.partition, result.token)
            if result.token.offset > previous.offset:
                last[result.token.partition] = result.token
        return [*last.values()]


def failure(topic: str, key: str | None, error: Exception, *, unknown: bool) -> WriteFailed:
    """Return the error of an operation on a key whose transaction failed."""
    outcome = "nothing was written"
    if unknown:
        outcome = "it may have been written; a repeat with the same Idempotency-Key returns the outcome"
    cause = error if isinstance(error, CompactoryError) else None
    message = f"the write to topic {topic!r} failed: {error if cause else type(error).__name__}; {outcome}"
    return WriteFailed.of_key(message, topic=topic, key=key, unknown=unknown, cause=cause)
