"""Which of many is the greatest, while they come and go: pairing heaps in one mapping. Pure.

Fredman, Sedgewick, Sleator and Tarjan, "The pairing heap: a new form of self-adjusting heap" (1986): to add takes a
constant number of accesses to the mapping, to remove as many as the logarithm of their number, amortized. A heap is
known by its root, its greatest id; the mapping may be on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from itertools import zip_longest
from struct import Struct
from typing import Any, NamedTuple

__all__ = ["PairingHeap"]

_NODE = Struct("16s16s16s")


class _Node(NamedTuple):
    """Ids of relatives, its own where there is none: ``before`` is the left sibling, or the parent of a first one."""

    child: bytes
    after: bytes
    before: bytes


class PairingHeap:
    """Heaps of ids of 16 bytes, each in one heap at most; ``rank`` says which of two is greater, never equal."""

    def __init__(self, nodes: MutableMapping[bytes, bytes], rank: Callable[[bytes], Any]) -> None:
        self._nodes = nodes
        self._rank = rank

    def __contains__(self, each: bytes) -> bool:
        return each in self._nodes

    def add(self, each: bytes) -> None:
        """Begin a heap of one."""
        self._set(each, each, each, each)

    def discard(self, each: bytes) -> None:
        """End a heap of one."""
        del self._nodes[each]

    def is_alone(self, root: bytes) -> bool:
        """Whether a heap has no other id than its root."""
        return self._node(root).child == root

    def second(self, root: bytes) -> bytes:
        """The greatest id of a heap of several without its root."""
        return max(self._children(root), key=self._rank)

    def meld(self, one: bytes, other: bytes) -> bytes:
        """Make one heap of two; its root."""
        root, below = (one, other) if self._rank(one) > self._rank(other) else (other, one)
        first = self._node(root).child
        if first != root:
            self._set(first, *self._node(first)[:2], below)
        self._set(below, self._node(below).child, first if first != root else below, root)
        self._set(root, below, root, root)
        return root

    def remove(self, root: bytes, each: bytes) -> bytes:
        """Take an id out of a heap of several; the root of what is left."""
        left = self._melded([*self._children(each)])
        if each != root:
            self._cut(each)
            left = root if left is None else self.meld(root, left)
        del self._nodes[each]
        assert left is not None, "a heap of one is discarded"
        return left

    def _melded(self, roots: Sequence[bytes]) -> bytes | None:
        """In pairs from left to right, then together from right to left: what makes removing cheap in the long run."""
        for each in roots:
            self._set(each, self._node(each).child, each, each)
        pairs = [self.meld(a, b) if b else a for a, b in zip_longest(roots[::2], roots[1::2])]
        if not pairs:
            return None
        root = pairs.pop()
        while pairs:
            root = self.meld(root, pairs.pop())
        return root

    def _cut(self, each: bytes) -> None:
        """Take a node that is no root away from parent and siblings."""
        _, after, before = self._node(each)
        its, follower = self._node(before), before
        if after != each:
            self._set(after, *self._node(after)[:2], before)
            follower = after
        if its.child == each:
            self._set(before, follower, its.after, its.before)
        else:
            self._set(before, its.child, follower, its.before)

    def _children(self, each: bytes) -> Iterator[bytes]:
        child = self._node(each).child
        while child != each:
            yield child
            each, child = child, self._node(child).after

    def _node(self, each: bytes) -> _Node:
        return _Node(*_NODE.unpack(self._nodes[each]))

    def _set(self, each: bytes, child: bytes, after: bytes, before: bytes) -> None:
        self._nodes[each] = _NODE.pack(child, after, before)
