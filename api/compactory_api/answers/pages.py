"""Pages of a directory in key order, all of it or by index or prefix. Pure.

A cursor has the last key of a page, and the next page begins after that key (keyset). So an entry that exists all the
time is listed exactly once, whatever other writes add or remove.
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
_FINGERPRINT_BYTES = 8
_MOST_COMBINATIONS = 64  # of values: six fields that could each be text or a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The entries to list: all of a directory, or those with ``values`` in the fields of ``index``, in their order."""

    directory: str
    index: str | None = None
    values: tuple[str, ...] = ()
    prefix: str = ""
    limit: int = DEFAULT_LIMIT

    def fingerprint(self) -> bytes:
        """Return what ties a cursor to this query. The limit is left out: it may change from page to page."""
        text = orjson.dumps([self.directory, self.index, self.values, self.prefix])
        return hashlib.blake2b(text, digest_size=_FINGERPRINT_BYTES).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Entries in the order of their keys, and the cursor of the next page; None in the last one."""

    entries: Sequence[Entry]
    next_cursor: str | None


def page(view: View[Any], query: Query, cursor: str | None = None) -> Page:
    """Return a page: ``limit`` entries, or fewer where their values are large. Call it in a thread of its own.

    The first call without an index sorts the keys (0.5 s a million), and they stay sorted.
    Raises BadRequest for a cursor of another query and for a wrong number of values, Forbidden for an index over an
    internal field, UnknownIndex, NotReady.
    """
    last_key = None if cursor is None else _decode_cursor(query, cursor)
    remaining = _entries(view, query, last_key) if query.index is None else _indexed_entries(view, query, last_key)
    entries: list[Entry] = []
    size = 0
    for entry in remaining:
        if len(entries) == query.limit or (entries and size + len(entry.value) > MOST_BYTES):
            return Page(entries=entries, next_cursor=_encode_cursor(query, entries[-1].key))
        entries.append(entry)
        size += len(entry.value)
    return Page(entries=entries, next_cursor=None)


def _entries(view: View[Any], query: Query, last_key: str | None) -> Iterator[Entry]:
    for key in view.keys_from(last_key, query.prefix):
        try:
            yield view.entry(key)
        except BadRecord:  # a KeyError too
            raise
        except KeyError:
            continue  # deleted since its key was read


def _indexed_entries(view: View[Any], query: Query, last_key: str | None) -> Iterator[Entry]:
    index = view.directory.index_named(query.index or "")
    if index is None:
        view.index(query.index or "")  # raises UnknownIndex, which lists the indexes
        return
    rules = view.directory.rules
    if rules is not None and any(map(rules.hides, index.fields)):  # a match would confirm its value
        raise Forbidden(f"index {query.index!r} covers an internal field: it can't be searched over HTTP")
    if len(query.values) != len(index.fields):
        names = ", ".join(index.fields)
        raise BadRequest(
            f"index {query.index!r} covers {len(index.fields)} fields ({names}): give value= for each, in this order;"
            f" {len(query.values)} given"
        )
    conditions = [dict(zip(index.fields, values, strict=True)) for values in _combinations(query.values)]
    matches = [view.find_entries_from(condition, last_key, query.prefix) for condition in conditions]
    previous_key = None
    for entry in merge(*matches, key=attrgetter("key")):
        if entry.key != previous_key:
            yield entry
        previous_key = entry.key


def _combinations(texts: Iterable[str]) -> list[tuple[Any, ...]]:
    """Return the values that the texts of a URL may mean: each the text, or the number or boolean that it spells."""
    combinations = list(product(*map(_scalars, texts)))
    if len(combinations) > _MOST_COMBINATIONS:
        raise BadRequest(
            f"value: {len(combinations)} combinations of texts and numbers; {_MOST_COMBINATIONS} are the most"
        )
    return combinations


def _scalars(text: str) -> list[Any]:
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        return [text]
    return [text, parsed] if isinstance(parsed, bool | int | float) else [text]


def _encode_cursor(query: Query, key: str) -> str:
    return base64.urlsafe_b64encode(query.fingerprint() + key.encode()).decode().rstrip("=")


def _decode_cursor(query: Query, cursor: str) -> str:
    """Return the last key of the previous page. Raises BadRequest."""
    try:
        raw = base64.b64decode(cursor.encode() + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        fingerprint, key = raw[:_FINGERPRINT_BYTES], raw[_FINGERPRINT_BYTES:].decode()
        if len(fingerprint) < _FINGERPRINT_BYTES:
            raise ValueError("too short")
    except (binascii.Error, ValueError):
        raise BadRequest("cursor: no server made it; send next_cursor of the previous page, unchanged") from None
    if fingerprint != query.fingerprint():
        raise BadRequest("cursor: it belongs to another directory, index, value or prefix; begin without one")
    return key
