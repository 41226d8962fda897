"""The route to the changes of a directory, as server-sent events."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from compactory.store import GlobalStore
from compactory.watch.change import Cursor

from ..answers.change_streams import EVENTS, ChangeStreams, EventsResponse
from ..http.errors import BadRequest
from ..http.models import DirectoryChange
from ..http.openapi import problems, reference_to

__all__ = ["change_routes"]

_PARAMETERS = frozenset({"prefix", "since"})
_ANSWER = {
    "description": "An event named put or delete for each change; its id is the cursor after it. The event named"
    " heartbeat comes at first and every 15 s: it has no data. The event named end says with a problem document why no"
    " more come",
    "content": {EVENTS: {"schema": reference_to(DirectoryChange)}},
}


def change_routes(store: GlobalStore, streams: ChangeStreams) -> APIRouter:
    """Return the route. It raises the errors of `problem`'s table."""
    routes = APIRouter(tags=["entries"])

    @routes.get(
        "/v1/directories/{directory}/watch",
        operation_id="watch_changes",
        summary="The changes of a directory as they come, as server-sent events",
        response_class=Response,
        responses={200: _ANSWER, **problems(400, 401, 403, 404, 405, 410, 421, 503)},
    )
    async def watch(
        directory: str,
        request: Request,
        since: Annotated[str | None, Query(description="A cursor: the id of the last event seen")] = None,
        prefix: Annotated[str, Query(description="Only keys that begin with this")] = "",
        last_event_id: Annotated[
            str | None, Header(description="The same as `since`, and goes before it; browsers send it to go on")
        ] = None,
    ) -> Response:
        unknown = sorted(request.query_params.keys() - _PARAMETERS)
        if unknown:  # a misspelled `since` would lose changes
            raise BadRequest(f"unknown parameter {unknown[0]!r}; known are {', '.join(sorted(_PARAMETERS))}")
        text = last_event_id or since
        cursor = None if text is None else Cursor.parse(text.replace(" ", "+"))  # an unescaped + arrives as a space
        return EventsResponse(await streams.open(store[directory], cursor, prefix))

    return routes
