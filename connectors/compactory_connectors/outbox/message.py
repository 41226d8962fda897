"""A message as it is published, and its checks. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from compactory.errors import WriteRefused

__all__ = ["MESSAGE_ID", "OutboxMessage", "check_all", "encoded", "headers_json", "headers_of"]

MESSAGE_ID = "compactory-message-id"
"""The header that tells repetitions apart."""

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

Headers = Mapping[str, str | bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxMessage:
    """One message. ``payload`` None is a tombstone.

    ``key`` and ``payload`` are bytes, or text that is sent as UTF-8; where the outbox has an encoder for the topic,
    ``payload`` is what that takes. ``partition_key`` decides the partition in place of the key. ``repr`` hides values.
    """

    topic: str
    payload: Any = field(repr=False)
    key: bytes | str | None = field(default=None, repr=False)
    partition_key: str | None = field(default=None, repr=False)
    headers: Headers | None = field(default=None, repr=False)


def check_all(messages: Iterable[OutboxMessage]) -> None:
    """Raise WriteRefused with every problem of messages that are encoded. No text shows a value."""
    found = [problem for number, message in enumerate(messages, 1) for problem in _problems(number, message)]
    if found:
        raise WriteRefused(found)


def _problems(number: int, message: OutboxMessage) -> Iterator[str]:
    topic: Any = message.topic  # callers need not have a type checker
    place = f"message {number} to {topic!r}"
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        yield (
            f"message {number}: {topic!r} can not be the name of a Kafka topic: use 1 to 249 letters, digits,"
            " dots, underscores and hyphens"
        )
    for name, value in (("payload", message.payload), ("key", message.key)):
        if value is not None and not isinstance(value, bytes | str):
            yield (
                f"{place}: {name} must be bytes or text, not {type(value).__name__}: encode it, or give the outbox"
                " an encoder for the topic"
            )
    if message.payload is None and message.key is None:
        yield f"{place}: neither payload nor key; a tombstone needs the key that it removes"
    partition_key: Any = message.partition_key
    if partition_key is not None and not isinstance(partition_key, str):
        yield f"{place}: partition_key must be text, not {type(partition_key).__name__}"
    headers: Mapping[Any, Any] = message.headers or {}
    for name, value in headers.items():
        if not isinstance(name, str) or not name:
            yield f"{place}: a header's name must be text that is not empty"
        elif name == MESSAGE_ID:
            yield f"{place}: header {name!r} is taken for the message's id"
        elif value is not None and not isinstance(value, bytes | str):
            yield f"{place}: header {name!r} must be text or bytes, not {type(value).__name__}"


def encoded(value: bytes | str | None) -> bytes | None:
    """Text as UTF-8."""
    return value.encode() if isinstance(value, str) else value


def headers_json(headers: Headers | None) -> str | None:
    """Headers as the table holds them."""
    if not headers:
        return None
    return orjson.dumps({name: _stored(value) for name, value in headers.items()}).decode()


def headers_of(stored: Mapping[str, Any] | None) -> list[tuple[str, bytes | None]]:
    """Headers as records carry them."""
    return [(name, _sent(value)) for name, value in stored.items()] if stored else []


def _stored(value: str | bytes | None) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _sent(value: Any) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return None if value is None else str(value).encode()
