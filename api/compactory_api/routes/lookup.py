"""The single lookup, outside of any framework: several times as fast as a route.

Each lookup runs this code, and here a call of a Python function costs as much as a dict lookup. So it works on bytes
from the path to the topic's value, and one object per directory keeps the parts that all its answers share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response

from compactory.directory import Directory
from compactory.errors import BadRecord, UnknownDirectory
from compactory.read.view import View
from compactory.store import GlobalStore

from ..http.freshness import max_age_of
from ..http.openapi import FRESHNESS_HEADERS, KEY, parameter, problems, text
from ..http.problem import NoEntry, NoResource
from ..http.request import DIRECTORIES, decode_segment
from ..http.response import content_type, shower

__all__ = ["Answer", "Lookup", "Lookups", "lookup_routes"]

Answer = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers and body."""

_NO_CACHE = (b"cache-control", b"no-cache")  # a cache may keep an answer, and asks with its ETag each time
_TAG = re.compile(rb'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_HEADERS = {
    "ETag": text('"topic id-partition-offset"'),
    "Compactory-Offset": text("topic:partition:offset of the record"),
}
_PARAMETERS = [
    KEY,
    parameter("If-None-Match", "An ETag"),
    parameter(
        "Cache-Control",
        "max-age=SECONDS: the data must have been known to be complete so long ago at most, else 503 of kind"
        " stale where the directory says on_stale=raise; 0 counts as 1 (RFC 9111)",
        example="max-age=60",
    ),
    *FRESHNESS_HEADERS,
]
_CONTENT = {
    "application/json": {"schema": {}},
    "text/plain": {"schema": {"type": "string"}},
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
}


class Lookups:
    """The directories by the paths of their entries. Thread-safe.

    ``by_path``  the directory by the bytes that stand before ``/entries/`` in a path without escapes
    """

    def __init__(self, store: GlobalStore) -> None:
        self._by_name = {directory.name: Lookup(store, directory) for directory in store.directories}
        self.by_path = {DIRECTORIES + name.encode(): lookup for name, lookup in self._by_name.items()}

    def by_escaped_path(self, path: bytes) -> Lookup | None:
        """Return the directory whose name is percent-encoded in the path before ``/entries/``.

        None where it is no path of a directory. Raises UnknownDirectory, BadRequest.
        """
        segment = path.removeprefix(DIRECTORIES)
        if segment == path or b"/" in segment:
            return None
        name = decode_segment(segment)
        if name not in self._by_name:
            raise UnknownDirectory(f"there is no directory {name!r}; there are: {', '.join(self._by_name)}")
        return self._by_name[name]


class Lookup:
    """Answers for one directory with the bytes of the topic. Raises the errors of `problem`'s table."""

    def __init__(self, store: GlobalStore, directory: Directory[Any]) -> None:
        self.name = directory.name
        self.topic = directory.topic
        self._view = store[directory.name]
        self._topic = directory.topic.encode()
        self._show = shower(directory)
        self._content_type = (b"content-type", content_type(directory))
        self._topic_id: str | None = None
        self._tag_prefix = self._topic  # Kafka older than 2.8 has no topic ids

    def answer(self, key: bytes, headers: Mapping[bytes, bytes]) -> Answer:
        """Return status, headers and body for a key, percent-encoded as in the path."""
        if b"%" in key:
            key = decode_segment(key).encode()
        view = self._view if b"cache-control" not in headers else self._view_within(headers[b"cache-control"])
        try:
            value, partition, offset, topic_id = view.record(key)
        except KeyError as error:
            raise self._absent(error, key) from None
        if topic_id is not self._topic_id:
            self._topic_id = topic_id
            self._tag_prefix = self._topic if topic_id is None else topic_id.encode()
        tag = b'"%b-%d-%d"' % (self._tag_prefix, partition, offset)
        token = (b"compactory-offset", b"%b:%d:%d" % (self._topic, partition, offset))
        if_none_match = headers.get(b"if-none-match")
        if if_none_match is not None and _matches(if_none_match, tag):
            return 304, [(b"etag", tag), token, _NO_CACHE], b""
        if self._show is not None:
            value = self._show(value)
        length = (b"content-length", b"%d" % len(value))
        return 200, [self._content_type, length, (b"etag", tag), token, _NO_CACHE], value

    def _view_within(self, cache_control: bytes) -> View[Any]:
        """Return the view with the age limit of ``Cache-Control: max-age=SECONDS`` (RFC 9111, 5.2.1.1)."""
        max_age = max_age_of(cache_control)
        return self._view if max_age is None else self._view.within(max_age)

    def _absent(self, error: KeyError, key: bytes) -> Exception:
        text_key = key.decode(errors="replace")
        if isinstance(error, BadRecord):
            return BadRecord(
                f"the newest record of {text_key!r} in directory {self.name!r} is bad; /v1/errors lists it"
            )
        return NoEntry(self.name, text_key)


def _matches(if_none_match: bytes, tag: bytes) -> bool:
    """Return True if the client has this version already: compared weakly, ``*`` is any (RFC 9110, 13.1.2)."""
    return if_none_match == tag or if_none_match.strip() == b"*" or tag in _TAG.findall(if_none_match)


def lookup_routes() -> APIRouter:
    """Return the routes for the OpenAPI document: `Application` answers lookups before FastAPI looks for a route."""
    routes = APIRouter(prefix="/v1/directories/{directory}", tags=["entries"])

    async def look_up(directory: str) -> Response:
        raise NoResource(f"the path to an entry of {directory!r} has an escaped / beside entries: send it unescaped")

    entry = {"description": "The value, as it is in the topic", "headers": _HEADERS}
    unchanged = {"description": "The client has this very record", "headers": _HEADERS}
    refusals = problems(400, 401, 403, 404, 412, 421, 502, 503)
    without_bodies = {status: {"description": answer["description"]} for status, answer in refusals.items()}
    for method, responses in (
        ("GET", {200: entry | {"content": _CONTENT}, 304: unchanged, **refusals}),
        ("HEAD", {200: entry, 304: unchanged, **without_bodies}),
    ):
        routes.add_api_route(
            "/entries/{key:path}",
            look_up,
            methods=[method],
            operation_id=f"{method.lower()}_entry",
            summary="Look one key up",
            responses=responses,
            openapi_extra={"parameters": _PARAMETERS},
            response_class=Response,
        )
    return routes
