"""A topic that was given more partitions: its table waits for an operator (guarantee 10)."""

from __future__ import annotations

from dataclasses import replace

from compactory.kafka.client import Kafka

from ..offsets.offset import SourceOffset
from ..offsets.offset_parts import ResendReason
from ..planning.table_plan import TablePlan
from ..polling.removal import Hold, PollHeld
from ..removals.pending_approval import PendingApproval

__all__ = ["PartitionGrowth"]

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
