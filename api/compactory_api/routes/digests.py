"""Routes to digests of a directory's entries, for comparisons with its topic: see `compactory.read`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse

from compactory.read.digest import RANGES
from compactory.store import GlobalStore

from ..answers.digests import LINES, Digests, Listings
from ..answers.values import json_response
from ..http.errors import BadRequest
from ..http.models import Digest
from ..http.openapi import problems

__all__ = ["digest_routes"]

_RANGES = r"^\d{1,3}(-\d{1,3})?(,\d{1,3}(-\d{1,3})?){0,255}$"
_PROBLEMS = problems(400, 401, 403, 404, 421, 503)


def digest_routes(store: GlobalStore, is_stopping: Callable[[], bool]) -> APIRouter:
    """Return the routes. They end a digest under way once ``is_stopping`` returns True.

    They raise the errors of `problem`'s table.
    """
    routes = APIRouter(prefix="/v1/directories/{directory}/digest", tags=["operations"])
    digests = Digests(store, is_stopping)
    listings = Listings(store)

    @routes.get(
        "",
        operation_id="get_digest",
        summary="Digests of all that a directory holds, by key range, at exactly known positions",
        responses={200: {"model": Digest}, **_PROBLEMS},
    )
    async def digest(directory: str) -> Response:
        return json_response(await digests.of(directory))

    @routes.get(
        "/{ranges}",
        operation_id="list_digests",
        summary="The records of some key ranges with their digests, a line of JSON each",
        response_class=StreamingResponse,
        responses={
            200: {
                "content": {LINES: {"schema": {"type": "string"}}},
                "description": "First line: that of get_digest without digests. Then a record a line, in no order:"
                " key, digest, partition, offset, timestamp_ms, bad. Last line: how many; without it the answer was"
                " cut off. A bad key, whose newest record is bad, shows its last good record, or none",
            },
            **_PROBLEMS,
        },
    )
    async def records(
        directory: str,
        ranges: Annotated[str, Path(description="7 or 0,7 or 16-31: of 0 to 255", pattern=_RANGES)],
        values: Annotated[bool, Query(description="Show the values too")] = False,
    ) -> Response:
        return await listings.open(directory, _range_numbers(ranges), with_values=values)

    return routes


def _range_numbers(text: str) -> frozenset[int]:
    """Return the numbers of ranges in ``0,7`` or ``16-31``. Raises BadRequest."""
    selected: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers[-1] >= RANGES:
            raise BadRequest(f"ranges: {part!r} is none; they go from 0 to {RANGES - 1}")
        selected.update(numbers)
    return frozenset(selected)
