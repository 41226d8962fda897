"""From which id on a table has to be read, so that nothing is missed and no dead row is read twice. Pure.

A transaction may commit long after another one that took a higher id. A transaction takes its ids after it got its own
(``compactory.publish`` and ``compactory.enqueue`` see to that), so that all ids of one that had not begun at a snapshot
are above the newest id known before that snapshot. Reading goes on behind the ids that were seen, and goes back once
when a transaction ends that ran meanwhile, to where that one may have begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["Position"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """``start``: every row with this id or a lower one was seen, except those of transactions in ``running``.

    ``running``: each transaction's id → an id below all of its rows. ``newest``: the newest id known before the
    next snapshot; ``before``: that before the last one.
    """

    start: int
    newest: int
    before: int
    running: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def at(cls, reached: int, newest: int) -> Position:
        """Where a reader begins that knows nothing of what runs."""
        return cls(start=reached, newest=newest, before=reached)

    def after(self, running: Iterable[int], newest: int, last: int | None) -> Position:
        """After a batch that was read at a snapshot with these transactions running.

        ``last`` is the highest id of a batch that was full; None: there was nothing above.
        """
        return Position(
            start=self.newest if last is None else min(last, self.newest),
            newest=newest,
            before=self.newest,
            running={xid: self.running.get(xid, self.before) for xid in running},
        )

    @property
    def reached(self) -> int:
        """No row with this id or a lower one is there, or can still come."""
        return min(self.start, *self.running.values()) if self.running else self.start
