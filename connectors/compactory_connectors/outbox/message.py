"""Messages and their checks. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from compactory.errors import WriteRefused
from compactory.records import is_topic_name
from compactory_connectors.postgres.handled import MESSAGE_ID

__all__ = ["MESSAGE_ID", "OutboxMessage", "check_all", "encoded", "headers_json", "headers_of"]


Headers = Mapping[str, str | bytes | None]


@dataclass(slots=True, kw_only=True)
class OutboxMessage:
    """A message. ``payload`` None is a tombstone.

    ``key`` and ``payload`` are bytes, or text that is sent as UTF-8. ``partition_key`` decides the partition in place
    of the key. ``deliver_at`` is an aware datetime: the message is not sent before. ``repr`` hides values.
    """

    topic: str
    payload: bytes | str | None = field(repr=False)
    key: bytes | str | None = field(default=None, repr=False)
    partition_key: str | None = field(default=None, repr=False)
    headers: Headers | None = field(default=None, repr=False)
    deliver_at: datetime | None = None


def check_all(messages: Iterable[OutboxMessage]) -> None:
    """Raise WriteRefused with every problem of the messages. No text shows a value."""
    problems = [
        f"{_label(number, message)}: {problem}"
        for number, message in enumerate(messages, 1)
        for problem in _problems(message)
    ]
    if problems:
        raise WriteRefused(problems)


def _label(number: int, message: Any) -> str:
    topic = getattr(message, "topic", None)
    return f"message {number}" if topic is None else f"message {number} to {topic!r}"


def _problems(message: Any) -> Iterator[str]:
    if not isinstance(message, OutboxMessage):  # callers need not have a type checker
        yield f"must be an OutboxMessage, not {type(message).__name__}"
        return
    topic: Any = message.topic
    if not is_topic_name(topic):
        yield (
            f"{topic!r} can not be the name of a Kafka topic: use 1 to 249 letters, digits, dots, underscores and"
            " hyphens"
        )
    if message.payload is None and message.key is None:
        yield "neither payload nor key; a tombstone needs the key that it removes"
    for name, value in (("payload", message.payload), ("key", message.key)):
        yield from _value_problems(name, value)
    partition_key: Any = message.partition_key
    if partition_key is not None and not isinstance(partition_key, str):
        yield f"partition_key must be text, not {type(partition_key).__name__}"
    elif partition_key is not None and not _is_storable(partition_key):
        yield "partition_key has a NUL or characters that UTF-8 can not hold"
    if message.headers:
        yield from _header_problems(message.headers)
    deliver_at: Any = message.deliver_at
    if deliver_at is not None and (not isinstance(deliver_at, datetime) or deliver_at.utcoffset() is None):
        yield "deliver_at must be a datetime with a time zone, such as datetime.now(UTC) + timedelta(hours=1)"


def _value_problems(name: str, value: Any) -> Iterator[str]:
    if value is not None and not isinstance(value, bytes | str):
        kind = type(value).__name__
        yield f"{name} must be bytes or text, not {kind}: encode it"
    elif not _is_utf8(value):
        yield f"{name} has characters that UTF-8 can not hold (surrogates)"


def _header_problems(headers: Any) -> Iterator[str]:
    if not isinstance(headers, Mapping):
        yield f"headers must be a mapping of names to text or bytes, not {type(headers).__name__}"
        return
    for name, value in headers.items():
        if not isinstance(name, str) or not name:
            yield "a header's name must be text that is not empty"
        elif name == MESSAGE_ID:
            yield f"header {name!r} is reserved for the message's id"
        elif value is not None and not isinstance(value, bytes | str):
            yield f"header {name!r} must be text or bytes, not {type(value).__name__}"
        elif not (_is_storable(name) and _is_storable(value)):
            yield f"header {name!r} has a NUL or characters that UTF-8 can not hold: give its value as bytes"


def _is_utf8(value: Any) -> bool:
    try:
        encoded(value)
    except UnicodeEncodeError:
        return False
    return True


def _is_storable(value: Any) -> bool:
    """Return True if Postgres can store the value as text, or the value is bytes."""
    return not isinstance(value, str) or ("\0" not in value and _is_utf8(value))


def encoded(value: bytes | str | None) -> bytes | None:
    """Return text as UTF-8, and bytes unchanged."""
    return value.encode() if isinstance(value, str) else value


def headers_json(headers: Headers | None) -> str | None:
    """Return headers as the table stores them."""
    if not headers:
        return None
    return orjson.dumps({name: _to_json(value) for name, value in headers.items()}).decode()


def headers_of(stored: Mapping[str, Any] | None) -> list[tuple[str, bytes | None]]:
    """Return stored headers as a record has them."""
    return [(name, _from_json(value)) for name, value in stored.items()] if stored else []


def _to_json(value: str | bytes | None) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # which jsonb can not hold
        return {"base64": base64.b64encode(value).decode()}
    return text


def _from_json(value: Any) -> bytes | None:
    if isinstance(value, dict):
        try:
            return base64.b64decode(value["base64"])
        except ValueError:  # SQL accepts any text there; one wrong header must not stop a topic
            return str(value["base64"]).encode()
    return None if value is None else str(value).encode()
