"""The single lookup: a bare ASGI callable, several times as fast as a framework's route."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from compactory.directory import Directory
from compactory.store import GlobalStore
from compactory.view import View

from .conditional import entity_tag, is_unchanged
from .freshness import Freshness, tokens_of, wait_of
from .path import decode_segment
from .refusal import MethodRefused, NoEntry
from .values import content_type

__all__ = ["Lookups", "Send"]

Send = Callable[[Any], Awaitable[None]]

_NO_CACHE = (b"cache-control", b"no-cache")  # a cache may keep an answer, and asks with its ETag each time


@dataclass(frozen=True, slots=True)
class _Target:
    """What is the same for all lookups of one directory."""

    directory: Directory[Any]
    view: View[Any]
    topic: str
    topic_bytes: bytes
    content_type: tuple[bytes, bytes]


class Lookups:
    """Answers ``GET`` and ``HEAD /v1/directories/{directory}/entries/{key}`` with the bytes of the topic.

    For the event loop's thread. Raises the errors of `problem`'s table; nothing has been sent then.
    """

    def __init__(self, store: GlobalStore, freshness: Freshness) -> None:
        self._store = store
        self._freshness = freshness
        self._targets = {directory.name.encode(): _target(store, directory) for directory in store.directories}

    async def answer(self, method: str, name: bytes, key: bytes, headers: Mapping[bytes, bytes], send: Send) -> int:
        """Answer one request and return the status.

        ``name`` and ``key`` are as in the path; ``headers`` has those that matter, in lower case.
        """
        if method != "GET" and method != "HEAD":
            raise MethodRefused(method, "GET, HEAD")
        target = self._targets.get(name) or self._spelled_otherwise(name)
        text = decode_segment(key)
        least = headers.get(b"compactory-min-offset")
        if least is not None:
            await self._freshness.wait(tokens_of(least, target.topic), wait_of(headers.get(b"prefer")))
        try:
            entry = target.view.entry(text)
        except KeyError as error:
            if type(error) is KeyError:
                raise NoEntry(target.directory.name, text) from None
            raise
        tag = entity_tag(self._store.topics().get(target.topic), entry)
        known = headers.get(b"if-none-match")
        status = 304 if known is not None and is_unchanged(known, tag) else 200
        answer = [
            (b"etag", tag),
            (b"compactory-offset", b"%b:%d:%d" % (target.topic_bytes, entry.partition, entry.offset)),
            _NO_CACHE,
        ]
        if status == 200:
            answer += (target.content_type, (b"content-length", b"%d" % len(entry.value)))
        await send({"type": "http.response.start", "status": status, "headers": answer})
        await send({"type": "http.response.body", "body": entry.value if status == 200 else b""})
        return status

    def _spelled_otherwise(self, name: bytes) -> _Target:
        """Find a directory whose name was percent-encoded. Raises UnknownDirectory."""
        text = decode_segment(name)
        return self._targets.get(text.encode()) or _target(self._store, self._store[text].directory)


def _target(store: GlobalStore, directory: Directory[Any]) -> _Target:
    return _Target(
        directory=directory,
        view=store[directory.name],
        topic=directory.topic,
        topic_bytes=directory.topic.encode(),
        content_type=(b"content-type", content_type(directory)),
    )
