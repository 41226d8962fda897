"""Who answers for a name that several owners may claim. Pure.

Works on any mutable mapping, so that a backend on disk can lend its own. One thread writes; any thread may read the
winners meanwhile and sees the old or the new cell, never neither.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, NamedTuple

from compactory.cell import newer

__all__ = ["Claims", "Swap"]


class Swap(NamedTuple):
    """What a record did to one lookup key: the cell that answered before, and the one that answers now."""

    name: bytes
    old: bytes | None
    new: bytes | None


class Claims:
    """Name → the cell that answers for it.

    Several owners may claim one name (an old inactive row and a new active one with the same natural key). All of them
    are kept; the one with the newer record timestamp answers (tie: higher partition, then higher offset), and when it
    goes, the next appears. Rivals are only stored aside where there are several.
    """

    def __init__(self, winners: MutableMapping[Any, bytes], rivals: MutableMapping[Any, tuple[bytes, ...]]) -> None:
        self.winners = winners
        self.rivals = rivals

    def put(self, name: Any, cell: bytes, old: bytes | None) -> bytes | None:
        """Claim ``name`` for ``cell``; ``old`` is what the same owner had under it. Return the former winner."""
        holder = self.winners.get(name)
        if holder is None or (holder == old and name not in self.rivals):
            self.winners[name] = cell
            return holder
        others = self.rivals.get(name) or (holder,)
        self._settle(name, (*(other for other in others if other != old), cell))
        return holder

    def drop(self, name: Any, cell: bytes) -> bytes | None:
        """Give up the claim of ``cell``. Return the former winner."""
        holder = self.winners.get(name)
        others = self.rivals.get(name)
        if others is not None:
            self._settle(name, tuple(other for other in others if other != cell))
        elif holder == cell:
            del self.winners[name]
        return holder

    def _settle(self, name: Any, cells: tuple[bytes, ...]) -> None:
        self.winners[name] = max(cells, key=newer)
        if len(cells) > 1:
            self.rivals[name] = cells
        else:
            self.rivals.pop(name, None)
