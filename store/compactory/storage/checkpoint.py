"""The checkpoint of a topic storage: positions and the identity of the topic. Pure."""

from __future__ import annotations

import msgspec

__all__ = ["CaughtUp", "Checkpoint"]


class CaughtUp(msgspec.Struct, frozen=True, kw_only=True):
    """The time when a partition was last applied up to its high watermark, and that high watermark.

    ``at`` is in seconds since 1970 (UTC); ``end`` is the high watermark at that time. ``clock`` is the same time on
    a clock of the machine that nobody sets, valid until the machine boots again; ``boot`` names that boot.
    """

    at: float
    end: int
    clock: float | None = None
    boot: str | None = None


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The positions and identity of a topic: a restart goes on from there, or sees that it must read the topic anew.

    ``topic_id``    identity of the topic; None on a Kafka older than 2.8
    ``cluster_id``  identity of the cluster
    ``definition``  definition of the directories: other definitions need to read the topic anew
    ``positions``   partition → next offset to read
    ``last_record_epochs``  partition → offset after the last applied record, and the leader epoch of that record:
                    a restart checks with them that the log was not cut off (KIP-320)
    ``caught_up``   partition → when it was last at its end: tombstones written since may be gone after
                    ``delete.retention.ms``
    ``complete``    True once everything was applied up to a high watermark
    """

    topic_id: str | None
    cluster_id: str | None
    definition: str
    positions: dict[int, int]
    # its name in folders of RocksDB's format 2, and in saved files of format 1
    last_record_epochs: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict, name="tails")
    caught_up: dict[int, CaughtUp] = msgspec.field(default_factory=dict)
    complete: bool = False
