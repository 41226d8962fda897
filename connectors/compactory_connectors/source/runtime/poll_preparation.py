"""Preparation of a poll: what its topic has, and which functions take the records before the first is published."""

from __future__ import annotations

from functools import partial

import structlog

from compactory.kafka.client import Kafka
from compactory_connectors.kafka.producer_record import ProducerRecord
from compactory_connectors.kafka.topic_reader import length

from ..offsets.offset import SourceOffset
from ..offsets.offset_parts import Phase
from ..planning.table_plan import TablePlan
from ..polling.cursor_reader import CursorReader
from ..polling.reader import Expect, Reader
from ..removals.change_guard import ChangeGuard
from ..verify.comparison import MOST_COMPARED, Comparison

__all__ = ["begins_empty", "expectation", "is_first_load", "topic_comparison"]

log = structlog.get_logger("compactory.source")


def is_first_load(offset: SourceOffset) -> bool:
    """Return True if every row is read because the table was never published."""
    return offset.phase in {Phase.LOADING, Phase.COMPARING} and offset.resend_reason is None


def begins_empty(kafka: Kafka, plan: TablePlan, offset: SourceOffset) -> bool:
    """Return True if a first load begins on a topic that never had a record."""
    if offset.phase is not Phase.LOADING or offset.partial_polls or not offset.sweep:
        return False
    topic = kafka.topics([plan.topic]).get(plan.topic)
    return topic is not None and not any(kafka.high_watermarks(topic.all()).values())


def topic_comparison(kafka: Kafka, reader: Reader, offset: SourceOffset) -> Comparison | None:
    """Read the topic in the phase COMPARING, so that records that it has are left out; else return None.

    After a crash every row goes out if the topic is large: the memory for a comparison might not be there, and a source
    that the system ends for its memory would begin again and again.
    """
    plan = reader.plan
    if offset.phase is not Phase.COMPARING or isinstance(reader, CursorReader) or plan.rows.routed:
        return None
    records = length(kafka, plan.topic) if offset.resend_reason else 0
    if records > MOST_COMPARED:
        log.warning("too large to be compared: every row is sent", table=plan.qualified, records=records)
        return None
    return Comparison.with_topic(kafka, plan.topic)


def expectation(plan: TablePlan, comparison: Comparison | None, guard: ChangeGuard | None) -> Expect | None:
    """Return the function that takes all records of a poll before the first of them is published."""
    id_is_key = plan.incrementing in plan.rows.key_columns
    compare = comparison.expect if comparison is not None and not id_is_key else None
    count = partial(guard.count, plan.topic) if guard is not None else None
    if compare is None or count is None:
        return compare or count

    def take(records: list[ProducerRecord]) -> None:
        compare(records)
        count(records)

    return take
