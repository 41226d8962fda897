"""Routes to many entries at once: batches by key, and pages in key order by index, prefix or all.

The cursor of a page has the page's last key, and the next page begins after that key (keyset). So an entry that exists
all the time is listed exactly once, whatever other writes add or remove.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import product
from operator import attrgetter
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from compactory.errors import BadRecord
from compactory.read.view import View
from compactory.records import Entry
from compactory.store import GlobalStore

from ..http.freshness import Freshness
from ..http.limits import ThreadGroup
from ..http.models import BatchAnswer, BatchQuestion, ListedEntries
from ..http.openapi import FRESHNESS_HEADERS, problems, reference_to
from ..http.problem import BadRequest, Forbidden, TooLarge
from ..http.request import check_media, joined_headers, parse_body, read_body
from ..http.response import embedder, json_response

__all__ = ["MOST_KEYS", "EntryQuery", "entry_routes", "page"]

MOST_KEYS = 1000
MOST_VALUE_BYTES = 32 << 20  # in the answer to a batch
MOST_PAGE_BYTES = 8 << 20  # of a page's values, unless one alone is larger
_MOST_BYTES = 8 << 20  # of a request body
_FINGERPRINT_BYTES = 8
_MOST_COMBINATIONS = 64  # of values: six fields that could each be text or a number
_JSON = "application/json"


class EntryQuery(BaseModel):
    """The entries to list: all, the one with ``key``, or those with ``value`` in the fields of ``index``, in order."""

    model_config = ConfigDict(extra="forbid")  # a misspelled filter would let everything pass

    key: str | None = Field(None, description="Only the entry with this key, if there is one; give it alone")
    index: str | None = Field(None, description="Only entries with `value` in this index")
    value: list[str] | None = Field(
        None, description="One per field of the index, in its order; 5 finds the number and the text"
    )
    prefix: str = Field("", description="Only keys that begin with this")
    limit: int = Field(100, ge=1, le=1000, description="Fewer come where their values have more than 8 MiB")
    cursor: str | None = Field(None, description="`next_cursor` of the page before")


def entry_routes(store: GlobalStore, freshness: Freshness, threads: ThreadGroup) -> APIRouter:
    """Return the routes. They read entries in the ``threads``. They raise the errors of `problem`'s table."""
    routes = APIRouter(prefix="/v1/directories/{directory}", tags=["entries"])
    embed = {directory.name: embedder(directory) for directory in store.directories}

    @routes.post(
        "/entries:batchGet",
        operation_id="batch_get_entries",
        summary="Look up at most 1,000 keys, with values of at most 32 MiB together",
        responses={200: {"model": BatchAnswer}, **problems(400, 401, 403, 404, 412, 413, 415, 421, 503)},
        openapi_extra={
            "parameters": FRESHNESS_HEADERS,
            "requestBody": {"required": True, "content": {_JSON: {"schema": reference_to(BatchQuestion)}}},
        },
    )
    async def batch_get(directory: str, request: Request) -> Response:
        view = store[directory]
        check_media({"content-type": _JSON, **request.headers}, _JSON)
        keys = parse_body(BatchQuestion, await read_body(request.scope, request.receive, _MOST_BYTES)).keys
        if len(keys) > MOST_KEYS:
            raise TooLarge(f"{len(keys)} keys; {MOST_KEYS} are the most in one batch")
        await freshness.wait(joined_headers(request.headers.raw), view.directory.topic)
        return json_response(await threads.run(_batch, view, keys, embed[directory]))

    @routes.get(
        "/entries",
        operation_id="list_entries",
        summary="List entries in the order of their keys",
        responses={200: {"model": ListedEntries}, **problems(400, 401, 403, 404, 412, 421, 502, 503)},
        openapi_extra={"parameters": FRESHNESS_HEADERS},
    )
    async def list_entries(directory: str, request: Request, query: Annotated[EntryQuery, Query()]) -> Response:
        view = store[directory]
        if query.value and query.index is None:
            raise BadRequest("value: give index= too; it says in which field to look")
        if query.key is not None and (query.index, query.prefix, query.cursor) != (None, "", None):
            raise BadRequest("key: give it alone, without index, prefix and cursor")
        await freshness.wait(joined_headers(request.headers.raw), view.directory.topic)
        return json_response(await threads.run(_page_document, view, query, embed[directory]))

    return routes


def _batch(view: View[Any], keys: list[str], embed: Any) -> bytes:
    """Return the document of a batch. Raises TooLarge."""
    values: dict[str, Any] = {}
    missing: list[str] = []
    bad: list[str] = []
    size = 0
    for key in dict.fromkeys(keys):
        try:
            value = view.raw(key)
        except BadRecord:
            bad.append(key)
        except KeyError:
            missing.append(key)
        else:
            size += len(value)
            if size > MOST_VALUE_BYTES:
                raise TooLarge(f"the values of these keys have more than {MOST_VALUE_BYTES >> 20} MiB; ask for fewer")
            values[key] = embed(value)
    if not keys:
        len(view)  # raises NotReady, also for a batch without keys
    return orjson.dumps({"found": values, "missing": missing, "bad": bad})


def _page_document(view: View[Any], query: EntryQuery, embed: Any) -> bytes:
    entries, next_cursor = page(view, query)
    documents = [
        {
            "key": entry.key,
            "value": embed(entry.value),
            "partition": entry.partition,
            "offset": entry.offset,
            "timestamp_ms": entry.timestamp_ms,
        }
        for entry in entries
    ]
    return orjson.dumps({"entries": documents, "next_cursor": next_cursor})


def page(view: View[Any], query: EntryQuery) -> tuple[list[Entry], str | None]:
    """Return entries in the order of their keys, and the cursor of the next page; None in the last one.

    These are ``limit`` entries, or fewer where their values are large. Call it in a thread of its own: the first call
    without an index sorts the keys (0.5 s a million), and they stay sorted.
    Raises BadRequest for a cursor of another query and for a wrong number of values, Forbidden for an index over an
    internal field, UnknownIndex, NotReady.
    """
    fingerprint = _fingerprint(view.directory.name, query)
    last_key = None if query.cursor is None else _last_key(query.cursor, fingerprint)
    if query.key is not None:
        remaining = _existing(view, [query.key])
    elif query.index is not None:
        remaining = _indexed_entries(view, query, last_key)
    else:
        remaining = _existing(view, view.keys_from(last_key, query.prefix))
    entries: list[Entry] = []
    size = 0
    for entry in remaining:
        if len(entries) == query.limit or (entries and size + len(entry.value) > MOST_PAGE_BYTES):
            return entries, base64.urlsafe_b64encode(fingerprint + entries[-1].key.encode()).decode().rstrip("=")
        entries.append(entry)
        size += len(entry.value)
    return entries, None


def _existing(view: View[Any], keys: Iterable[str]) -> Iterator[Entry]:
    for key in keys:
        try:
            yield view.entry(key)
        except BadRecord:  # a KeyError too
            raise
        except KeyError:
            continue


def _indexed_entries(view: View[Any], query: EntryQuery, last_key: str | None) -> Iterator[Entry]:
    index = view.directory.index_named(query.index or "")
    if index is None:
        view.index(query.index or "")  # raises UnknownIndex, which lists the indexes
        return
    rules = view.directory.rules
    if rules is not None and any(map(rules.hides, index.fields)):  # a match would confirm its value
        raise Forbidden(f"index {query.index!r} covers an internal field: it can't be searched over HTTP")
    values = query.value or []
    if len(values) != len(index.fields):
        names = ", ".join(index.fields)
        raise BadRequest(
            f"index {query.index!r} covers {len(index.fields)} fields ({names}): give value= for each, in this order;"
            f" {len(values)} given"
        )
    conditions = [dict(zip(index.fields, combination, strict=True)) for combination in _combinations(values)]
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


def _fingerprint(directory: str, query: EntryQuery) -> bytes:
    """Return what ties a cursor to its query. The limit is left out: it may change from page to page."""
    text = orjson.dumps([directory, query.index, query.value or [], query.prefix])
    return hashlib.blake2b(text, digest_size=_FINGERPRINT_BYTES).digest()


def _last_key(cursor: str, fingerprint: bytes) -> str:
    """Return the last key of the previous page. Raises BadRequest."""
    try:
        raw = base64.b64decode(cursor.encode() + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        key = raw[_FINGERPRINT_BYTES:].decode()
        if len(raw) < _FINGERPRINT_BYTES:
            raise ValueError("too short")
    except (binascii.Error, ValueError):
        raise BadRequest("cursor: no server made it; send next_cursor of the previous page, unchanged") from None
    if raw[:_FINGERPRINT_BYTES] != fingerprint:
        raise BadRequest("cursor: it belongs to another directory, index, value or prefix; begin without one")
    return key
