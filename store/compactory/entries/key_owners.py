"""Who answers for a name that several owners may claim. Pure.

Works on any mutable mapping, so that a backend on disk can lend its own. One thread writes; any thread may read the
winners meanwhile and sees the old or the new cell, never neither.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import NamedTuple

from compactory.codec.packed_record import TRAILER, newer
from compactory.entries.pairing_heap import PairingHeap

__all__ = ["KeyOwners", "Swap"]


class Swap(NamedTuple):
    """What a record did to one lookup key: the cell that answered before, and the one that answers now."""

    name: bytes
    old: bytes | None
    new: bytes | None


class KeyOwners:
    """Name → the cell that answers for it.

    Several owners may claim one name (an old inactive row and a new active one with the same natural key). All of them
    are kept; the one with the newer record timestamp answers (tie: higher partition, then higher offset), and when it
    goes, the next appears. Only where there are several they are kept aside, by their trailers: ``candidates`` trailer
    → cell, ``ranks`` what :class:`PairingHeap` knows of them. Thousands under one name cost each other next to nothing.
    """

    def __init__(
        self,
        current: MutableMapping[bytes, bytes],
        candidates: MutableMapping[bytes, bytes],
        ranks: MutableMapping[bytes, bytes],
    ) -> None:
        self._current = current
        self._candidates = candidates
        self._heap = PairingHeap(ranks, newer)

    def current_for(self, name: bytes, gone: bytes | None, cell: bytes | None) -> bytes | None:
        """Return which cell would answer for ``name`` if the claim of ``gone`` ended and ``cell`` claimed it."""
        head = self._current.get(name)
        if head is not None and head == gone:
            head = self._next(head, cell)
        if head is None or cell is None:
            return cell if head is None else head
        return max(head, cell, key=newer)

    def settle(self, name: bytes, gone: bytes | None, cell: bytes | None) -> None:
        """Let that be so."""
        head = self._current.get(name)
        if head is not None and gone is not None:
            head = self._without(head, gone)
        if cell is not None:
            head = cell if head is None else self._with(head, cell)
        if head is None:
            self._current.pop(name, None)
        else:
            self._current[name] = head

    def _next(self, head: bytes, cell: bytes | None) -> bytes | None:
        """Who answers when the head is gone; not looked for where a cell that comes is newer than all."""
        if head[-TRAILER:] not in self._heap or (cell is not None and newer(cell) > newer(head)):
            return None
        return self._candidates[self._heap.second(head[-TRAILER:])]

    def _without(self, head: bytes, gone: bytes) -> bytes | None:
        root, leaving = head[-TRAILER:], gone[-TRAILER:]
        if leaving not in self._heap:
            return None if leaving == root else head
        root = self._heap.remove(root, leaving)
        del self._candidates[leaving]
        if not self._heap.is_alone(root):
            return self._candidates[root]
        self._heap.discard(root)
        return self._candidates.pop(root)

    def _with(self, head: bytes, cell: bytes) -> bytes:
        for each in (head, cell):
            if each[-TRAILER:] not in self._heap:
                self._heap.add(each[-TRAILER:])
                self._candidates[each[-TRAILER:]] = each
        return self._candidates[self._heap.meld(head[-TRAILER:], cell[-TRAILER:])]
