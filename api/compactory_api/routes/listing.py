"""Pages of a directory in key order, all of it or by index or prefix, with a cursor that survives changes. Pure.

A page begins after the last key of the page before (keyset), so an entry that exists all the time is listed
exactly once, whatever comes and goes around it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import product
from operator import attrgetter
from typing import Any

import orjson

from compactory.errors import BadRecord
from compactory.read.view import View
from compactory.records import Entry

from ..http.errors import BadRequest, Forbidden

__all__ = ["DEFAULT_LIMIT", "MOST_BYTES", "MOST_ENTRIES", "Page", "Query", "page"]

DEFAULT_LIMIT = 100
MOST_ENTRIES = 1000
MOST_BYTES = 8 << 20  # of a page's values, unless one alone is larger
_MARK = 8  # bytes of the fingerprint that ties a cursor to its query
_MOST_READINGS = 64  # of a composite value: six fields that could each be text or a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The entries to list. ``values`` are those of the index's fields, in their order; without ``index`` everything."""

    directory: str
    index: str | None = None
    values: tuple[str, ...] = ()
    prefix: str = ""
    limit: int = DEFAULT_LIMIT

    def mark(self) -> bytes:
        """Return the fingerprint of this query; the limit is no part of it and may change from page to page."""
        text = orjson.dumps([self.directory, self.index, self.values, self.prefix])
        return hashlib.blake2b(text, digest_size=_MARK).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Entries in the order of their keys, and the cursor of the page after; None when this was the last."""

    entries: Sequence[Entry]
    next_cursor: str | None


def page(view: View[Any], query: Query, cursor: str | None = None) -> Page:
    """Return a page: ``limit`` entries, or fewer where their values are large. For a thread of its own.

    The first one without an index puts the keys in order (0.5 s a million); they stay in order.
    Raises BadRequest for a cursor of another query and for a wrong number of values, Forbidden for an index over an
    internal field, UnknownIndex, NotReady.
    """
    after = None if cursor is None else _key_after(query, cursor)
    following = _entries(view, query, after) if query.index is None else _from_index(view, query, after)
    shown: list[Entry] = []
    size = 0
    for entry in following:
        if len(shown) == query.limit or (shown and size + len(entry.value) > MOST_BYTES):
            return Page(entries=shown, next_cursor=_cursor(query, shown[-1].key))
        shown.append(entry)
        size += len(entry.value)
    return Page(entries=shown, next_cursor=None)


def _entries(view: View[Any], query: Query, after: str | None) -> Iterator[Entry]:
    for key in view.keys_from(after, query.prefix):
        try:
            yield view.entry(key)
        except BadRecord:
            raise
        except KeyError:
            continue  # deleted meanwhile


def _from_index(view: View[Any], query: Query, after: str | None) -> Iterator[Entry]:
    fields = view.directory.index_named(query.index or "")
    if fields is None:
        view.index(query.index or "")  # raises UnknownIndex, naming those there are
        return
    rules = view.directory.rules
    if rules is not None and any(map(rules.hides, fields.fields)):  # a search would confirm its value
        raise Forbidden(f"index {query.index!r} covers an internal field: it can't be searched over HTTP")
    if len(query.values) != len(fields.fields):
        names = ", ".join(fields.fields)
        raise BadRequest(
            f"index {query.index!r} covers {len(fields.fields)} fields ({names}): give value= for each, in this order;"
            f" {len(query.values)} given"
        )
    readings = [dict(zip(fields.fields, reading, strict=True)) for reading in _readings(query.values)]
    found = [view.find_entries_from(reading, after, query.prefix) for reading in readings]
    last = None
    for entry in merge(*found, key=attrgetter("key")):
        if entry.key != last:
            yield entry
        last = entry.key


def _readings(values: Iterable[str]) -> list[tuple[Any, ...]]:
    """Return the possible values of texts in a URL: each the text itself, or the number or boolean that it spells."""
    readings = list(product(*(_scalars(value) for value in values)))
    if len(readings) > _MOST_READINGS:
        raise BadRequest(f"value: {len(readings)} combinations of texts and numbers; {_MOST_READINGS} are the most")
    return readings


def _scalars(text: str) -> list[Any]:
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        return [text]
    return [text, parsed] if isinstance(parsed, bool | int | float) else [text]


def _cursor(query: Query, key: str) -> str:
    return base64.urlsafe_b64encode(query.mark() + key.encode()).decode().rstrip("=")


def _key_after(query: Query, cursor: str) -> str:
    try:
        raw = base64.b64decode(cursor.encode() + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        mark, key = raw[:_MARK], raw[_MARK:].decode()
        if len(mark) < _MARK:
            raise ValueError("too short")
    except (binascii.Error, ValueError):
        raise BadRequest("cursor: not one of ours; take next_cursor of the page before, unchanged") from None
    if mark != query.mark():
        raise BadRequest("cursor: it belongs to another directory, index, value or prefix; begin without one")
    return key
