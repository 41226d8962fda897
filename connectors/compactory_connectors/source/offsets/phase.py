"""Which rows the next poll of a table takes, and why it takes rows that were sent before. Pure data.

`offset` decides on most reasons; `polling.table`, `runtime.resume` and `runtime.table_task` decide on the others.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["Phase", "ResendReason"]


class Phase(Enum):
    """Loading and comparing begin without a seen snapshot, and each phase but steady ends with one whole poll.

    Any phase becomes comparing when nothing of the offset can be trusted (`SourceOffset.afresh`), and rewinding when
    somebody sets it to a place (`SourceOffset.beyond`).
    """

    LOADING = "loading"  # every row
    COMPARING = "comparing"  # every row that the topic does not have byte for byte
    REWINDING = "rewinding"  # rows beyond a place; with a seen snapshot also those that changed since
    STEADY = "steady"  # rows that changed since the seen snapshot


class ResendReason(Enum):
    """Why a poll begins behind what was sent, so that records may go out twice. The value is a metric's label."""

    CRASH = "crash"  # of the server: it may have taken back what was sent, and gives transaction ids out again
    HISTORY = "history"  # another server, timeline, database or table: nothing is comparable
    DISTANCE = "distance"  # the offset is older than 2³¹ transactions
    IDS = "ids"  # the ids that were seen were too many to be written down
    SHAPE = "shape"  # the table was rewritten, or its triggers were others for a while
    PARTITION = "partition"  # an attached partition is sent whole
    SPREAD = "spread"  # the topic was given more partitions
    TOPIC = "topic"  # the topic ends before what was written to it: an older copy was put back
    KEYS = "keys"  # other keys than before are made of the rows, or they go to other partitions
    PLACE = "place"  # somebody set the offset back
