"""How far a topic was read into a topic storage, and of which topic that is true. Pure."""

from __future__ import annotations

import msgspec

__all__ = ["CaughtUp", "Checkpoint"]


class CaughtUp(msgspec.Struct, frozen=True, kw_only=True):
    """When a partition was last known to be applied to its end, and what the end was then.

    ``at`` is in seconds since 1970 (UTC); ``end`` the high watermark at that moment. ``clock`` is the same moment by
    the machine's own clock, which nobody sets, during the run of the machine that ``boot`` names.
    """

    at: float
    end: int
    clock: float | None = None
    boot: str | None = None


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How far a topic was read: enough to go on from there, or to see that one can't.

    ``topic_id``    identity of the topic; None on a Kafka older than 2.8
    ``cluster_id``  identity of the cluster
    ``definition``  what was made of the records: directories that are defined otherwise need to read anew
    ``positions``   partition → next offset to read
    ``last_record_epochs``  partition → offset after the last record that was applied, and that record's leader epoch:
                    whether the log still is the one it came from (KIP-320)
    ``caught_up``   partition → when it was last at its end: tombstones written since may be gone after
                    ``delete.retention.ms``
    ``complete``    whether everything was applied up to a high watermark once
    """

    topic_id: str | None
    cluster_id: str | None
    definition: str
    positions: dict[int, int]
    # its name in folders of RocksDB's format 2, and in saved files of format 1
    last_record_epochs: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict, name="tails")
    caught_up: dict[int, CaughtUp] = msgspec.field(default_factory=dict)
    complete: bool = False
