"""The offset from which a session polls a table: the stored one, as far as it is about this server and this topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import structlog

from compactory.errors import CompactoryError

from ..config.connector import ConnectorConfig
from ..offsets.offset import SourceOffset
from ..offsets.stored_offsets import StoredOffset
from ..offsets.topics import OFFSETS_TOPIC, TopicEnds
from ..planning.table_plan import TablePlan
from ..postgres.server import Server

__all__ = ["ServerReplaced", "refuse_replaced_server", "start_offset"]

log = structlog.get_logger("compactory.source")


class ServerReplaced(CompactoryError):
    """The server is a primary that a promoted standby has replaced; its rows are old."""

    retryable = True


def start_offset(
    stored: StoredOffset | None, topic: tuple[str, str | None], plan: TablePlan, ends: TopicEnds
) -> SourceOffset | None:
    """Return the part of the stored offset that holds for the present topic; None: the table is loaded afresh.

    Raises CompactoryError for an offset that can't be read.
    """
    if stored is not None and stored.problem is not None:
        raise CompactoryError(
            f"the offset of {plan.qualified} in topic {OFFSETS_TOPIC!r} can't be read ({stored.problem}); it was"
            " written by something else or a newer version; compactory source offsets reset forgets it, and the next"
            " run loads the table afresh"
        )
    offset = stored.offset if stored is not None else None
    if offset is None:
        return None
    if offset.topic is None:  # set by hand, for any topic
        return replace(offset, topic=topic)
    if offset.topic != topic:
        log.warning("another topic than before: the table is loaded afresh", table=plan.qualified, topic=topic)
        return None
    if offset.topic_end > ends.passed[plan.topic]:
        log.warning("an older copy of the topic was put back: all rows are read", table=plan.qualified, topic=topic)
        return offset.for_restored_topic(sweep=plan.sweeps)
    return offset


def refuse_replaced_server(
    connector: ConnectorConfig, server: Server, plans: Iterable[TablePlan], offsets: Mapping[bytes, StoredOffset]
) -> None:
    """Raise ServerReplaced before a source of this server would fence the source of the promoted server."""
    for plan in plans:
        stored = offsets.get(plan.offset_key(server.database))
        offset = stored.offset if stored is not None else None
        identity = server.identity(plan.oid)
        if offset is not None and offset.identity.replaces(identity):
            raise ServerReplaced(
                f"the server at {connector.connection.server} is on timeline {identity.timeline}, and {plan.qualified}"
                f" was already read on timeline {offset.identity.timeline} of the same system: an old primary that"
                " nobody shut down? Shut it down, or leave it out of connection.url (with several hosts,"
                " loadBalanceHosts=true finds the other one); where an old backup was restored on purpose, compactory"
                " source offsets reset has its tables loaded afresh"
            )
