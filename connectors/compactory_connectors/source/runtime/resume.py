"""Where a table goes on: its stored offset, as far as that is about this server and this topic."""

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

__all__ = ["LeftBehind", "refuse_left_behind", "stored_offset", "usable"]

log = structlog.get_logger("compactory.source")


class LeftBehind(CompactoryError):
    """The server is a primary that a promoted standby has replaced; its rows are old."""

    retryable = True


def stored_offset(stored: StoredOffset | None, plan: TablePlan) -> SourceOffset | None:
    """The offset of a table, None where none is stored. Raises CompactoryError for one that can't be read."""
    if stored is not None and stored.problem is not None:
        raise CompactoryError(
            f"the offset of {plan.qualified} in topic {OFFSETS_TOPIC!r} can't be read ({stored.problem}); it was"
            " written by something else or a newer version; compactory source offsets reset forgets it, and the next"
            " run loads the table afresh"
        )
    return stored.offset if stored is not None else None


def usable(
    offset: SourceOffset | None, topic: tuple[str, str | None], plan: TablePlan, ends: TopicEnds
) -> SourceOffset | None:
    """The part of the offset that holds for the topic as it is now; None: the table is loaded afresh."""
    if offset is not None and offset.topic is None:  # set by hand, for whatever topic it is
        return replace(offset, topic=topic)
    if offset is not None and offset.topic != topic:
        log.warning("another topic than before: the table is loaded afresh", table=plan.qualified, topic=topic)
        return None
    if offset is not None and offset.topic_end > ends.passed[plan.topic]:
        log.warning("an older copy of the topic was put back: all rows are read", table=plan.qualified, topic=topic)
        return offset.for_restored_topic(sweep=plan.sweeps)
    return offset


def refuse_left_behind(
    connector: ConnectorConfig, server: Server, plans: Iterable[TablePlan], offsets: Mapping[bytes, StoredOffset]
) -> None:
    """Raise LeftBehind before the source of the promoted server, which is right, is fenced."""
    for plan in plans:
        stored = offsets.get(plan.offset_key(server.database))
        offset = stored.offset if stored is not None else None
        here = server.identity(plan.oid)
        if offset is not None and offset.identity.replaces(here):
            raise LeftBehind(
                f"the server at {connector.connection.server} is on timeline {here.timeline}, and {plan.qualified} was"
                f" already read on timeline {offset.identity.timeline} of the same system: an old primary that nobody"
                " shut down? Shut it down, or leave it out of connection.url (with several hosts, loadBalanceHosts=true"
                " finds the other one); where an old backup was restored on purpose, compactory source offsets reset"
                " has its tables loaded afresh"
            )
