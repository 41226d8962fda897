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

    def with_claim(self, name: Any, cell: bytes, old: bytes | None) -> tuple[bytes, ...]:
        """Return who would claim ``name`` with ``cell`` added; ``old`` is what the same owner had under it."""
        holder = self.winners.get(name)
        if holder is None or (holder == old and name not in self.rivals):
            return (cell,)
        return (*(other for other in self.rivals.get(name, (holder,)) if other != old), cell)

    def without_claim(self, name: Any, cell: bytes) -> tuple[bytes, ...]:
        """Return who would claim ``name`` with ``cell`` gone."""
        holder = self.winners.get(name)
        others = self.rivals.get(name, () if holder is None else (holder,))
        return tuple(other for other in others if other != cell)

    def winner(self, cells: tuple[bytes, ...]) -> bytes | None:
        """Return which of the claiming cells answers."""
        return cells[0] if len(cells) == 1 else max(cells, key=newer, default=None)

    def settle(self, name: Any, cells: tuple[bytes, ...]) -> None:
        """Let exactly these cells claim ``name``."""
        winner = self.winner(cells)
        if winner is None:
            self.winners.pop(name, None)
        else:
            self.winners[name] = winner
        if len(cells) > 1:
            self.rivals[name] = cells
        else:
            self.rivals.pop(name, None)
