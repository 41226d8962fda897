"""The single lookup, outside of any framework: several times as fast as a route.

Each request runs this code, and here a call of a Python function costs as much as a dict lookup. So it works on bytes
from the path to the topic's value, and one object per directory keeps the parts that all its answers share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compactory.directory import Directory
from compactory.errors import BadRecord, UnknownDirectory
from compactory.read.view import View
from compactory.store import GlobalStore

from ..http.conditional import is_unchanged
from ..http.errors import NoEntry
from ..http.freshness import Freshness, max_age_of, tokens_of, wait_of
from ..http.path import DIRECTORIES, decode_segment
from ..http.values import content_type, shower

__all__ = ["Answer", "Lookup", "Lookups"]

Answer = tuple[int, list[tuple[bytes, bytes]], bytes]

_NO_CACHE = (b"cache-control", b"no-cache")  # a cache may keep an answer, and asks with its ETag each time


class Lookups:
    """Finds the directory of a path ``/v1/directories/{directory}/entries/{key}``. Thread-safe.

    ``by_place`` has each under what stands before ``/entries/`` where nothing is percent-encoded.
    """

    def __init__(self, store: GlobalStore) -> None:
        self._by_name = {directory.name: Lookup(store, directory) for directory in store.directories}
        self.by_place = {DIRECTORIES + name.encode(): lookup for name, lookup in self._by_name.items()}

    def spelled_otherwise(self, place: bytes) -> Lookup | None:
        """Return the lookups of what stands before ``/entries/`` where escapes hide a directory's name.

        None where it is no path of a directory. Raises UnknownDirectory, BadRequest.
        """
        name = place.removeprefix(DIRECTORIES)
        if name == place or b"/" in name:
            return None
        text = decode_segment(name)
        found = self._by_name.get(text)
        if found is None:
            known = ", ".join(self._by_name)
            raise UnknownDirectory(f"there is no directory {text!r}; there are: {known}")
        return found


class Lookup:
    """Answers for one directory with the bytes of the topic. Raises the errors of `problem`'s table."""

    def __init__(self, store: GlobalStore, directory: Directory[Any]) -> None:
        self.name = directory.name
        self._directory = directory
        self._view = store[directory.name]
        self._topic = directory.topic.encode()
        self._show = shower(directory)
        self._content_type = (b"content-type", content_type(directory))
        self._topic_id: str | None = None
        self._identity = self._topic  # on a Kafka older than 2.8 the name has to do

    def answer(self, key: bytes, headers: Mapping[bytes, bytes]) -> Answer:
        """Return status, headers and body for a key as it stands in the path."""
        if b"%" in key:
            key = decode_segment(key).encode()
        view = self._view if b"cache-control" not in headers else self._within(headers[b"cache-control"])
        try:
            value, partition, offset, topic_id = view.record(key)
        except KeyError as error:
            raise self._absent(error, key) from None
        if topic_id is not self._topic_id:
            self._topic_id = topic_id
            self._identity = self._topic if topic_id is None else topic_id.encode()
        tag = b'"%b-%d-%d"' % (self._identity, partition, offset)
        place = (b"compactory-offset", b"%b:%d:%d" % (self._topic, partition, offset))
        known = headers.get(b"if-none-match")
        if known is not None and is_unchanged(known, tag):
            return 304, [(b"etag", tag), place, _NO_CACHE], b""
        if self._show is not None:
            value = self._show(value)
        length = (b"content-length", b"%d" % len(value))
        return 200, [self._content_type, length, (b"etag", tag), place, _NO_CACHE], value

    async def wait_until_visible(self, headers: Mapping[bytes, bytes], freshness: Freshness) -> None:
        """Wait until the positions in ``Compactory-Min-Offset`` are visible, as long as ``Prefer`` allows.

        Raises BadRequest, WaitTimeout.
        """
        tokens = tokens_of(headers[b"compactory-min-offset"], self._directory.topic)
        await freshness.wait(tokens, wait_of(headers.get(b"prefer")))

    def _within(self, cache_control: bytes) -> View[Any]:
        """Return the view with the age limit of ``Cache-Control: max-age=SECONDS`` (RFC 9111, 5.2.1.1)."""
        max_age = max_age_of(cache_control)
        return self._view if max_age is None else self._view.within(max_age)

    def _absent(self, error: KeyError, key: bytes) -> Exception:
        text = key.decode(errors="replace")
        if isinstance(error, BadRecord):
            where = f"{text!r} in directory {self._directory.name!r}"
            return BadRecord(f"the newest record of {where} is bad; /v1/errors lists it")
        return NoEntry(self._directory.name, text)
