"""Preparation of a poll: the partitions and records of its topic, and functions that take the records beforehand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import structlog

from compactory.kafka.client import Kafka
from compactory_connectors.kafka.producer_record import ProducerRecord
from compactory_connectors.kafka.topic_reader import length

from ..offsets.offset import SourceOffset
from ..offsets.offset_parts import Phase, ResendReason
from ..planning.table_plan import TablePlan
from ..polling.cursor_reader import CursorReader
from ..polling.reader import Expect, Reader
from ..polling.removal import Hold, PollHeld
from ..removals.change_guard import ChangeGuard
from ..removals.pending_approval import PendingApproval
from ..verify.comparison import MOST_COMPARED, Comparison

__all__ = ["PartitionGrowth", "begins_empty", "expectation", "is_first_load", "topic_comparison"]

log = structlog.get_logger("compactory.source")

_REPAIR = "every row is sent again, and misplaced records get tombstones"
_LEAVE = "new records go to their new partitions, and the former ones are left to you"
_RECREATE = "with message.timestamp.type=LogAppendTime a tombstone would be the newest of its key: make the topic anew"


class PartitionGrowth:
    """Compares the ``partitions`` of a table's topics with those that its offset knows. Owned by one thread."""

    def __init__(self, plan: TablePlan, kafka: Kafka, approval: PendingApproval, partitions: int) -> None:
        self._plan = plan
        self._kafka = kafka
        self._approval = approval
        self._partitions = partitions
        self.is_held = False
        """True while nothing may be sent before an operator approves the new partitions."""

    def adapt(self, offset: SourceOffset) -> SourceOffset:
        """Return the offset with the present number of partitions. Raises PollHeld until an operator approves it."""
        previous = offset.partition_count
        self.is_held = previous is not None and previous != self._partitions and not self._plan.keyless
        if previous is not None and self.is_held:
            self._demand_approval(previous)
            self.is_held = False
            if self._plan.sweeps:
                # not compared: a record that the topic has may belong in another partition now
                offset = offset.restarted(ResendReason.SPREAD).without_comparison()
        return replace(offset, partition_count=self._partitions)

    def _demand_approval(self, previous: int) -> None:
        topic = self._plan.topic
        problem = (
            f"topic {topic!r} has {self._partitions} partitions and had {previous}: keys belong elsewhere now, and what"
            " they have in their former partitions would stay there"
        )
        growth = Hold(id=f"partitions-{previous}-{self._partitions}", keys=0)
        config = self._kafka.topic_configs([topic]).get(topic, {})
        if config.get("message.timestamp.type") == "LogAppendTime":
            problem = f"{problem}; {_RECREATE}"
            self._approval.show_doubt(problem)
            raise PollHeld(growth, problem)
        self._approval.demand(growth, f"{problem}; approved, {_REPAIR if self._plan.sweeps else _LEAVE}")
        self._approval.release()


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
