"""A topic with more partitions than the records of its table were spread over: the table waits for an operator."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compactory.kafka.client import Kafka

from ..control.removal import HeldRemoval, RemovalHeld
from ..cursor.offset import SourceOffset
from ..cursor.resend_reason import ResendReason
from ..plan.table_plan import TablePlan
from ..reconcile.pending_approval import PendingApproval

__all__ = ["PartitionGrowth"]

_REPAIR = "every row is sent again, and misplaced records get tombstones"
_LEAVE = "new records go to their new partitions, and the former ones are left to you"
_ANEW = "with message.timestamp.type=LogAppendTime a tombstone would be the newest of its key: make the topic anew"


@dataclass(slots=True, kw_only=True)
class PartitionGrowth:
    """Guarantee 10 of one table. Owned by the session's thread."""

    kafka: Kafka
    plan: TablePlan
    approval: PendingApproval
    partitions: int
    """Of its topics."""
    waits: bool = False
    """Nothing may be sent: an operator has not approved the growth."""

    def check(self, offset: SourceOffset) -> SourceOffset:
        """The offset to go on from with the partitions of now. Raises RemovalHeld while it waits."""
        known, now = offset.spread, self.partitions
        self.waits = known is not None and known != now and not self.plan.keyless
        if self.waits:
            self._ask(known, now)
            self.waits = False
            if self.plan.sweeps:
                # not compared: a record that the topic has may belong in another partition now
                offset = offset.afresh(ResendReason.SPREAD).uncompared()
        return replace(offset, spread=now)

    def _ask(self, known: int | None, now: int) -> None:
        growth = HeldRemoval(id=f"partitions-{known}-{now}", removed=0, keys=0)
        grown = (
            f"topic {self.plan.topic!r} has {now} partitions and had {known}: keys belong elsewhere now, and what they"
            " have in their former partitions would stay there"
        )
        config = self.kafka.topic_configs([self.plan.topic]).get(self.plan.topic, {})
        if config.get("message.timestamp.type") == "LogAppendTime":
            self.approval.doubt(why := f"{grown}; {_ANEW}")
            raise RemovalHeld(growth, why)
        self.approval.refuse(growth, f"{grown}; approved, {_REPAIR if self.plan.sweeps else _LEAVE}")
        self.approval.release()
