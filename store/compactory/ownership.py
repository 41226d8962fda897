"""Who answers for a name that several owners may claim. Pure.

Works on any mutable mapping, so that a backend on disk can lend its own. One thread writes; any thread may read the
winners meanwhile and sees the old or the new cell, never neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from struct import Struct
from typing import NamedTuple

from compactory.cell import newer

__all__ = ["Claims", "Swap"]

_LENGTH = Struct("<I")


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

    def __init__(self, winners: MutableMapping[bytes, bytes], rivals: MutableMapping[bytes, bytes]) -> None:
        self.winners = winners
        self.rivals = rivals  # name -> all claiming cells as `_joined`

    def with_claim(self, name: bytes, cell: bytes, old: bytes | None) -> tuple[bytes, ...]:
        """Return who would claim ``name`` with ``cell`` added; ``old`` is what the same owner had under it."""
        return (*(other for other in self._claiming(name) if other != old), cell)

    def without_claim(self, name: bytes, cell: bytes) -> tuple[bytes, ...]:
        """Return who would claim ``name`` with ``cell`` gone."""
        return tuple(other for other in self._claiming(name) if other != cell)

    def winner(self, cells: tuple[bytes, ...]) -> bytes | None:
        """Return which of the claiming cells answers."""
        return cells[0] if len(cells) == 1 else max(cells, key=newer, default=None)

    def settle(self, name: bytes, cells: tuple[bytes, ...]) -> None:
        """Let exactly these cells claim ``name``."""
        winner = self.winner(cells)
        if winner is None:
            self.winners.pop(name, None)
        else:
            self.winners[name] = winner
        if len(cells) > 1:
            self.rivals[name] = _joined(cells)
        else:
            self.rivals.pop(name, None)

    def _claiming(self, name: bytes) -> tuple[bytes, ...]:
        holder = self.winners.get(name)
        if holder is None:
            return ()
        several = self.rivals.get(name)
        return (holder,) if several is None else tuple(_parted(several))


def _joined(cells: Iterable[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(cell)) + cell for cell in cells)


def _parted(joined: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(joined):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(joined, at)[0]
        yield joined[start:at]
