"""Errors that only exist because somebody asked over HTTP. All derive from CompactoryError.

A new one is a class here, and a row of `problem.PROBLEMS` with its status and title.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from compactory.errors import CompactoryError

__all__ = [
    "BadRequest",
    "Forbidden",
    "HeadTooLarge",
    "MethodRefused",
    "Misdirected",
    "NoEntry",
    "NoResource",
    "OutcomeFailed",
    "Overloaded",
    "Stopping",
    "TooLarge",
    "TooManyConnections",
    "TooSlow",
    "Unauthorized",
    "UnsupportedMedia",
]


class BadRequest(CompactoryError):
    """Parts of the request are not what they should be. ``problems`` lists all that were found."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems: list[str] = [problems] if isinstance(problems, str) else list(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "; ".join(self.problems)


class Unauthorized(CompactoryError):
    """No token, or one that is not ours."""


class Forbidden(CompactoryError):
    """The token is valid, and not for this."""


class Misdirected(CompactoryError):
    """The Host header names another machine: a web page may be asking through a name that it controls."""


class NoEntry(CompactoryError):
    """The directory has no entry of this key."""

    def __init__(self, directory: str, key: str) -> None:
        self.directory = directory
        self.key = key
        super().__init__(directory, key)

    def __str__(self) -> str:
        return f"directory {self.directory!r} has no entry {self.key!r}"


class NoResource(CompactoryError):
    """There is nothing at this path."""


class OutcomeFailed(CompactoryError):
    """The write is in the log, and the processors that finish it have failed. ``value`` is the outcome."""

    def __init__(self, directory: str, key: str, reason: object, value: Any) -> None:
        self.directory = directory
        self.key = key
        self.reason = reason
        self.value = value
        super().__init__(directory, key, reason)

    def __str__(self) -> str:
        return f"{self.key!r} was written, and its processing failed: {self.reason} (directory {self.directory!r})"


class MethodRefused(CompactoryError):
    """The path does not take this method; ``allowed`` are those it takes. ``hint`` says what to do instead."""

    def __init__(self, method: str, allowed: str, hint: str = "") -> None:
        self.method = method
        self.allowed = allowed
        self.hint = hint
        super().__init__(method, allowed, hint)

    def __str__(self) -> str:
        return f"{self.method} is not possible here; possible: {self.allowed}" + (self.hint and f". {self.hint}")


class TooLarge(CompactoryError):
    """The request asks for, or carries, more than one request may."""


class HeadTooLarge(CompactoryError):
    """The request's line and headers are larger, or more, than a server takes."""


class TooSlow(CompactoryError):
    """The request did not come within its time."""


class Overloaded(CompactoryError):
    """Requests under way and unread answers take all the memory that they may."""

    retryable = True


class TooManyConnections(CompactoryError):
    """The server has as many connections as it takes, and all of them are at work."""

    retryable = True


class UnsupportedMedia(CompactoryError):
    """The body is not JSON by its own account."""


class Stopping(CompactoryError):
    """The server shuts down and can't wait any longer."""

    retryable = True
