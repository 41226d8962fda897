"""Which server an offset's transaction ids belong to, and why they may have to be given up. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Again", "Identity"]


class Again(Enum):
    """Why a poll begins behind what was sent, so that records may go out twice. The value is a metric's label."""

    CRASH = "crash"  # of the server: it may have taken back what was sent, and gives transaction ids out again
    HISTORY = "history"  # another server, timeline, database or table: nothing is comparable
    DISTANCE = "distance"  # the offset is older than 2³¹ transactions
    IDS = "ids"  # the ids that were seen were too many to be written down
    SHAPE = "shape"  # the table was rewritten, or its triggers were others for a while
    PARTITION = "partition"  # an attached partition is sent whole
    SPREAD = "spread"  # the topic was given more partitions
    PLACE = "place"  # somebody set the offset back


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which server and table the transaction ids of an offset belong to.

    ``statistics_start`` changes when the server recovers from a crash, its own or that of a backend (an out-of-memory
    kill, which the postmaster and its start time survive). A clean shutdown keeps the statistics.
    """

    system_identifier: str
    timeline: int
    postmaster_start: str
    statistics_start: str
    table_oid: int
    database_oid: int = 0

    def same_history(self, other: Identity) -> bool:
        """Whether transaction ids of both can be compared (a restarted server: yes; promoted or restored: no)."""
        return (self.system_identifier, self.timeline, self.database_oid, self.table_oid) == (
            other.system_identifier,
            other.timeline,
            other.database_oid,
            other.table_oid,
        )

    def ahead_of(self, other: Identity) -> bool:
        """Whether the other is a primary that was left behind when a standby of it was promoted (or a copy of it)."""
        return self.system_identifier == other.system_identifier and self.timeline > other.timeline

    def same_memory(self, other: Identity) -> bool:
        """Whether the server has forgotten nothing in between: it ran on, or was shut down in order and started."""
        return self.same_history(other) and self.statistics_start == other.statistics_start
