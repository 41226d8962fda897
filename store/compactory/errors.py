"""The one error tree of the system. Every error carries fields, not just text, and pickles.

This module imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = [
    "BackendCorrupt",
    "BackendFailed",
    "BackendLocked",
    "BadRecord",
    "BatchRefused",
    "CompactoryError",
    "ConfigError",
    "Conflict",
    "CursorConflict",
    "DecodeError",
    "EntryMissing",
    "LeaseLost",
    "NotReady",
    "OrderRefused",
    "PreconditionFailed",
    "StaleData",
    "StartTimeout",
    "StoreClosed",
    "StoreFailed",
    "UnknownDirectory",
    "UnknownIndex",
    "Unreachable",
    "WaitTimeout",
    "WatchExpired",
    "WriteFailed",
    "WriteRefused",
]


class CompactoryError(Exception):
    """Base of every error that this project raises on purpose.

    ``retryable`` says whether the same call may succeed later without any change.
    """

    retryable: bool = False

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # no fields; and a KeyError would print the text's repr


class _Problems(CompactoryError):
    """An error that lists every problem found."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems: list[str] = [problems] if isinstance(problems, str) else list(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0]
        return "\n".join(f"- {problem}" for problem in self.problems)


class ConfigError(_Problems):
    """Bad input. ``problems`` lists every one found, each naming the thing, the place and the remedy."""


class StartTimeout(CompactoryError, TimeoutError):
    """``start()`` did not reach the high watermark in time.

    ``blocking`` has a mapping for each partition that is behind: topic, partition, position, target and, if an open
    transaction holds it back, its producer.
    """

    retryable = True

    def __init__(self, message: str, blocking: Iterable[Mapping[str, Any]] = ()) -> None:
        self.blocking: list[dict[str, Any]] = [dict(item) for item in blocking]
        super().__init__(message, self.blocking)


class WaitTimeout(CompactoryError, TimeoutError):
    """A token or barrier was not reached in time. ``gap`` maps each partition to the offsets still missing."""

    retryable = True

    def __init__(self, message: str, gap: Mapping[Any, int] | None = None) -> None:
        self.gap: dict[Any, int] = dict(gap or {})
        super().__init__(message, self.gap)


class NotReady(CompactoryError):
    """A lookup before the store has read every topic to its high watermark."""

    retryable = True


class BadRecord(CompactoryError, KeyError):
    """The newest record of this key can't be decoded, and the key has no good value (HTTP 502)."""


class StaleData(CompactoryError):
    """A read demanded data that was known to be current at most ``max_age`` seconds ago; it is ``age`` seconds old.

    ``age`` is infinite if the directory never was at the end of its topic.
    """

    retryable = True

    def __init__(self, message: str, age: float, max_age: float) -> None:
        self.age = age
        self.max_age = max_age
        super().__init__(message, age, max_age)


class WatchExpired(CompactoryError):
    """Changes after a cursor are gone. Read the directory, then watch on from ``cursor``, which is of now."""

    def __init__(self, message: str, cursor: Any) -> None:
        self.cursor = cursor
        super().__init__(message, cursor)


class UnknownDirectory(CompactoryError, KeyError):
    """The store has no directory of this name."""


class UnknownIndex(CompactoryError, KeyError):
    """The directory has no index of this name or over these fields."""


class DecodeError(CompactoryError, ValueError):
    """A value that the directory's decoder refuses."""


class StoreFailed(CompactoryError):
    """The reader died. ``cause`` is the error that ended it."""

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        self.cause = cause
        super().__init__(message, cause)


class StoreClosed(CompactoryError):
    """The store was closed; make a new one."""


class Unreachable(CompactoryError):
    """An outside system (Kafka, Postgres, an HTTP server) was not reached in time. ``system`` names it."""

    retryable = True

    def __init__(self, system: str, message: str) -> None:
        self.system = system
        super().__init__(system, message)

    def __str__(self) -> str:
        return str(self.args[1])


class BackendFailed(CompactoryError):
    """The folder of a store's entries can't be read or written. ``path`` is the folder."""

    def __init__(self, message: str, path: str = "") -> None:
        self.path = path
        super().__init__(message, path)


class BackendCorrupt(BackendFailed):
    """The contents of the folder can't be trusted (a wrong checksum, a missing file)."""


class BackendLocked(BackendFailed):
    """Another store uses the folder. ``pid`` is its process, if known."""

    def __init__(self, message: str, path: str = "", pid: int | None = None) -> None:
        super().__init__(message, path)
        self.pid = pid


class EntryMissing(CompactoryError, KeyError):
    """The entry that a write is about does not exist. Nothing was written."""


class Conflict(CompactoryError):
    """A unique value is taken, a reference leads nowhere, or the entry exists already. Nothing was written."""


class CursorConflict(Conflict):
    """A batch expected another cursor of its writer than the stored ``cursor`` (None: none). Nothing was written."""

    def __init__(self, message: str, cursor: str | None) -> None:
        self.cursor = cursor
        super().__init__(message, cursor)


class PreconditionFailed(CompactoryError):
    """The entry is not in the state that the write demands: another write came first. Nothing was written."""


class WriteRefused(_Problems, ValueError):
    """Nothing was sent: ``problems`` lists every key or value that readers of the directory could not use.

    Texts name keys and types, never values.
    """


class BatchRefused(CompactoryError):
    """A batch is refused because of one operation. Nothing was written.

    ``index``  of the operation in the batch, from 0
    ``key``    the operation's key; None if it was to be derived
    ``error``  the error that the operation alone would have raised
    """

    def __init__(self, index: int, key: str | None, error: CompactoryError) -> None:
        self.index = index
        self.key = key
        self.error = error
        super().__init__(index, key, error)

    def __str__(self) -> str:
        name = "" if self.key is None else f" on key {self.key!r}"
        return f"operation {self.index} of the batch{name}: {self.error}"


class WriteFailed(CompactoryError):
    """Records were sent, and not all of them were acknowledged. Writing the whole call again is always safe.

    ``topic``        the topic
    ``written``      key → token of the last record with that key that was acknowledged
    ``not_written``  keys with a record that Kafka certainly did not take
    ``unknown``      keys with a record that was given up while it was being sent: it may still appear
    ``cause``        the error of the first record that failed; it says whether trying again may help
    """

    def __init__(
        self,
        message: str,
        *,
        topic: str = "",
        written: Mapping[str, Any] | None = None,
        not_written: Iterable[str] = (),
        unknown: Iterable[str] = (),
        cause: CompactoryError | None = None,
    ) -> None:
        self.topic = topic
        self.written: dict[str, Any] = dict(written or {})
        self.not_written: tuple[str, ...] = tuple(not_written)
        self.unknown: tuple[str, ...] = tuple(unknown)
        self.cause = cause
        self.retryable = cause is not None and cause.retryable
        super().__init__(message)

    @classmethod
    def of_key(
        cls, message: str, *, topic: str, key: str | None, unknown: bool, cause: CompactoryError | None = None
    ) -> WriteFailed:
        """Return the error of one write, which may be tried again."""
        keys = [key or ""]
        failed = cls(message, topic=topic, unknown=keys if unknown else (), cause=cause)
        failed.not_written = () if unknown else tuple(keys)
        failed.retryable = True
        return failed


class OrderRefused(CompactoryError):
    """An operator's command does not fit the state, such as a command to a standby (HTTP 409)."""


class LeaseLost(CompactoryError):
    """Another holder owns the lease or the transactional id; this one must not publish any more."""


def extra_remedy(extra: str) -> str:
    """Return how to install an extra, as the end of a message. No package index has Compactory, hence the URL."""
    where = "with the URL of Compactory's wheel or checkout (https://… or file:///…)"
    return f"pip install 'compactory[{extra}] @ URL', {where}"
