"""Errors of requests over HTTP. All derive from CompactoryError.

A new error is a class here, and a row of `problem.PROBLEMS` with its status and title.
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
    """Parts of the request are wrong. ``problems`` lists each of them."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems: list[str] = [problems] if isinstance(problems, str) else list(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "; ".join(self.problems)


class Unauthorized(CompactoryError):
    """The request has no token, or one that the server does not know."""


class Forbidden(CompactoryError):
    """The token is valid, but does not allow this request."""


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
    """The write is in its topic, but the processors that finish it have failed. ``value`` is the outcome."""

    def __init__(self, directory: str, key: str, reason: object, value: Any) -> None:
        self.directory = directory
        self.key = key
        self.reason = reason
        self.value = value
        super().__init__(directory, key, reason)

    def __str__(self) -> str:
        return f"{self.key!r} was written, and its processing failed: {self.reason} (directory {self.directory!r})"


class MethodRefused(CompactoryError):
    """The path does not take this method. ``allowed`` lists those that it takes, ``hint`` says what to do instead."""

    def __init__(self, method: str, allowed: str, hint: str = "") -> None:
        self.method = method
        self.allowed = allowed
        self.hint = hint
        super().__init__(method, allowed, hint)

    def __str__(self) -> str:
        return f"{self.method} is not possible here; possible: {self.allowed}" + (self.hint and f". {self.hint}")


class TooLarge(CompactoryError):
    """The request carries, or asks for, more than a request may."""


class HeadTooLarge(CompactoryError):
    """The request's line and headers are larger, or more, than a server takes."""


class TooSlow(CompactoryError):
    """The request was not complete within its time limit."""


class Overloaded(CompactoryError):
    """Requests under way and unread answers use up their memory limit, or calls a queue of threads."""

    retryable = True


class TooManyConnections(CompactoryError):
    """The server has its highest number of connections, and each of them is in use."""

    retryable = True


class UnsupportedMedia(CompactoryError):
    """The Content-Type of the body is not one that the path takes, or the body is compressed."""


class Stopping(CompactoryError):
    """The server shuts down, so the request can't wait any longer."""

    retryable = True
