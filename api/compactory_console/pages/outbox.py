"""The page of the outbox: topics, what waits, and messages that Kafka has refused."""

from __future__ import annotations

from typing import Any

import psycopg
from starlette.responses import Response

from compactory.errors import ConfigError
from compactory_connectors.outbox import operators
from compactory_connectors.outbox.operators import failed_messages
from compactory_connectors.outbox.status import topic_statuses
from compactory_connectors.postgres.pausing import paused

from ..call import Call
from ..operators import open_outbox_part
from ..rendering import counted

__all__ = ["change_outbox", "outbox_page"]

_SHOWN = 200


async def outbox_page(call: Call) -> Response:
    """Return the topics of the outbox and the failed messages, of one topic or of all."""
    call.session.demand_read()
    topic = call.query("topic")

    def read(connection: psycopg.Connection[Any]) -> dict[str, Any]:
        return {
            "topics": topic_statuses(connection),
            "messages": failed_messages(connection, topic, limit=_SHOWN),
            "paused": [item.name for item in paused(connection, "outbox")],
        }

    facts = await call.parts.operators.in_database(read, open_outbox_part)
    return call.page("outbox.html", topic=topic, shown=_SHOWN, **facts)


async def change_outbox(call: Call) -> Response:
    """Send failed messages again, or drop them."""
    call.session.demand_admin()
    verb, topic = call.field("act"), call.field("topic")
    ids = call.ids()
    if verb not in ("retry", "drop") or not (ids or topic):
        raise ConfigError("choose messages or a topic, and retry or drop")
    function = operators.retry if verb == "retry" else operators.drop
    count = await call.parts.operators.in_database(lambda sql: function(sql, topic, ids, by=call.by), open_outbox_part)
    return call.back("/outbox", f"{verb}: {counted(count, 'message')}.")
