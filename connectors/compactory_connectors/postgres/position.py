"""The id from which a table of messages or jobs must be read, so that no row is missed. Pure.

A transaction may commit long after another transaction that took higher ids. Each transaction gets its transaction id
before it takes row ids (``compactory.publish`` and ``compactory.enqueue`` do so). So a transaction that begins after a
snapshot takes only ids above the newest id before the snapshot. Reading continues after the ids that were read. When a
transaction ends that was running, reading goes back once, to the lowest id that this transaction can have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["Position"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """``start``: every row with this id or a lower one was read, except rows of transactions in ``running``.

    ``running`` maps a transaction id to an id below all of its rows. ``newest`` is the newest id before the next
    snapshot, ``previous_newest`` the newest id before the last one.
    """

    start: int
    newest: int
    previous_newest: int
    running: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def at(cls, reached: int, newest: int) -> Position:
        """Return the first position of a reader, which knows no running transactions."""
        return cls(start=reached, newest=newest, previous_newest=reached)

    def after(self, running: Iterable[int], newest: int, last: int | None) -> Position:
        """Return the position after a batch. ``running``: transactions that ran at the snapshot of the batch.

        ``last`` is the highest id of a full batch; None: the batch had every row.
        """
        return Position(
            start=self.newest if last is None else min(last, self.newest),
            newest=newest,
            previous_newest=self.newest,
            running={xid: self.running.get(xid, self.previous_newest) for xid in running},
        )

    @property
    def reached(self) -> int:
        """The highest id with no unread row at or below it, now or later."""
        return min(self.start, *self.running.values()) if self.running else self.start
