"""Routes to many entries at once: batches by key, pages by index, prefix or all."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request, Response

from compactory.errors import BadRecord
from compactory.read.view import View
from compactory.records import Entry
from compactory.store import GlobalStore

from ..answers import pages
from ..answers.values import embedder, json_response
from ..http.body import check_media, read_body
from ..http.errors import BadRequest, TooLarge
from ..http.freshness import Freshness, tokens_of, wait_of
from ..http.models import BatchAnswer, BatchQuestion, ListedEntries
from ..http.openapi import FRESHNESS_HEADERS, problems, reference_to
from ..http.threads import ThreadGroup

__all__ = ["MOST_KEYS", "MOST_VALUE_BYTES", "entry_routes"]

MOST_KEYS = 1000
MOST_VALUE_BYTES = 32 << 20  # in the answer to a batch
_MOST_BYTES = 8 << 20  # of a request body
_JSON = "application/json"
_PARAMETERS = frozenset({"index", "value", "prefix", "limit", "cursor"})


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
        keys = _batch_keys(await read_body(request.scope, request.receive, _MOST_BYTES))
        await _await_offset(freshness, request, view)
        return json_response(await threads.run(_batch, view, keys, embed[directory]))

    @routes.get(
        "/entries",
        operation_id="list_entries",
        summary="List entries in the order of their keys",
        responses={200: {"model": ListedEntries}, **problems(400, 401, 403, 404, 412, 421, 502, 503)},
        openapi_extra={"parameters": FRESHNESS_HEADERS},
    )
    async def list_entries(
        directory: str,
        request: Request,
        index: Annotated[str | None, Query(description="Only entries with `value` in this index")] = None,
        value: Annotated[
            list[str] | None,
            Query(description="One per field of the index, in its order; 5 finds the number and the text"),
        ] = None,
        prefix: Annotated[str, Query(description="Only keys that begin with this")] = "",
        limit: Annotated[
            int,
            Query(ge=1, le=pages.MOST_ENTRIES, description="Fewer come where their values have more than 8 MiB"),
        ] = pages.DEFAULT_LIMIT,
        cursor: Annotated[str | None, Query(description="`next_cursor` of the page before")] = None,
    ) -> Response:
        view = store[directory]
        unknown = sorted(request.query_params.keys() - _PARAMETERS)
        if unknown:  # a misspelled filter would let everything pass
            known = ", ".join(sorted(_PARAMETERS))
            raise BadRequest(f"unknown parameter {unknown[0]!r}; known are {known}: index=NAME&value=… asks an index")
        if value and index is None:
            raise BadRequest("value: give index= too; it says in which field to look")
        await _await_offset(freshness, request, view)
        query = pages.Query(directory=directory, index=index, values=tuple(value or ()), prefix=prefix, limit=limit)
        return json_response(await threads.run(_page, view, query, cursor, embed[directory]))

    return routes


async def _await_offset(freshness: Freshness, request: Request, view: View[Any]) -> None:
    min_offset = ",".join(request.headers.getlist("compactory-min-offset"))
    if min_offset:
        prefer = ",".join(request.headers.getlist("prefer"))
        tokens = tokens_of(min_offset.encode("latin-1"), view.directory.topic)
        await freshness.wait(tokens, wait_of(prefer.encode("latin-1")))


def _batch_keys(body: bytes) -> list[str]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list):
        raise BadRequest('the body must be {"keys": ["…", …]}')
    if len(keys) > MOST_KEYS:
        raise TooLarge(f"{len(keys)} keys; {MOST_KEYS} are the most in one batch")
    if not all(isinstance(key, str) for key in keys):
        raise BadRequest("every key must be text; a number is looked up by its decimal digits")
    return keys


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


def _page(view: View[Any], query: pages.Query, cursor: str | None, embed: Any) -> bytes:
    page = pages.page(view, query, cursor)
    entries = [_listed(entry, embed) for entry in page.entries]
    return orjson.dumps({"entries": entries, "next_cursor": page.next_cursor})


def _listed(entry: Entry, embed: Any) -> dict[str, Any]:
    return {
        "key": entry.key,
        "value": embed(entry.value),
        "partition": entry.partition,
        "offset": entry.offset,
        "timestamp_ms": entry.timestamp_ms,
    }
