"""Which rows the next poll of a table takes: the phases of an offset."""

from __future__ import annotations

from enum import Enum

__all__ = ["Phase"]


class Phase(Enum):
    """Loading and comparing begin without a seen snapshot, and each phase but steady ends with one whole poll.

    Any phase becomes comparing when nothing of the offset can be trusted (`SourceOffset.afresh`), and rewinding when
    somebody sets it to a place (`SourceOffset.beyond`).
    """

    LOADING = "loading"  # every row
    COMPARING = "comparing"  # every row that the topic does not have byte for byte
    REWINDING = "rewinding"  # rows beyond a place; with a seen snapshot also those that changed since
    STEADY = "steady"  # rows that changed since the seen snapshot; of mode incrementing those with ids that are new
