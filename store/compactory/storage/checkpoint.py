"""How far a topic was read into a topic storage, and of which topic that is true. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["CaughtUp", "Checkpoint", "checkpoint_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CaughtUp:
    """When a partition was last known to be applied to its end, and what the end was then.

    ``at`` is in seconds since 1970 (UTC); ``end`` the high watermark at that moment. ``clock`` is the same moment by
    the machine's own clock, which nobody sets, during the run of the machine that ``boot`` names.
    """

    at: float
    end: int
    clock: float | None = None
    boot: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
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
    last_record_epochs: dict[int, tuple[int, int]] = field(default_factory=dict)
    caught_up: dict[int, CaughtUp] = field(default_factory=dict)
    complete: bool = False

    def fields(self) -> dict[str, Any]:
        """Return it as JSON can hold it; `checkpoint_of` reads it."""
        found = asdict(self)
        found["tails"] = found.pop("last_record_epochs")  # its name in folders of RocksDB's format 2
        return found


def checkpoint_of(fields: dict[str, Any]) -> Checkpoint:
    """Return the checkpoint that JSON holds. Raises KeyError, TypeError, AttributeError, ValueError."""
    epochs = fields.get("tails", {}).items()
    marks = fields["caught_up"].items()
    return Checkpoint(
        topic_id=fields["topic_id"],
        cluster_id=fields["cluster_id"],
        definition=fields["definition"],
        positions={int(number): position for number, position in fields["positions"].items()},
        last_record_epochs={int(number): tuple(epoch) for number, epoch in epochs},
        caught_up={int(number): CaughtUp(**mark) for number, mark in marks},
        complete=fields["complete"],
    )
