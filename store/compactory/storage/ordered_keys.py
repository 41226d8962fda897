"""The keys of a directory in order, for prefixes and ranges in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from threading import Lock

from compactory.codec.decoding import encode_lookup_key

__all__ = ["OrderedKeys", "bounds"]

_BLOCK = 512  # keys; a change copies one block and the list of blocks: 3 µs at a million keys

Blocks = tuple[list[bytes], list[list[bytes]]]  # the first key of each block, and the blocks


class OrderedKeys:
    """A sorted set of keys. One thread changes it, any thread goes over it and sees it as it was when it began.

    Blocks are never changed, only replaced. It begins empty and notes changes; `build` then gives it the keys that
    were there already.
    """

    def __init__(self) -> None:
        self._changes: list[tuple[bytes, bool]] | None = []  # noted until `build` is done
        self._blocks: Blocks = ([], [])
        self._lock = Lock()  # guards the two against build

    def build(self, keys: Iterable[bytes]) -> None:
        """Take up the keys that were there when, or after, the noting of changes began; half a second a million."""
        ordered = sorted(keys)
        blocks = [ordered[at : at + _BLOCK] for at in range(0, len(ordered), _BLOCK)]
        with self._lock:
            self._blocks = ([block[0] for block in blocks], blocks)
            changes, self._changes = self._changes or [], None
            for key, present in changes:
                self._change(key, present=present)

    def add(self, key: bytes) -> None:
        """Add a key, unless it is there already."""
        self._note(key, present=True)

    def discard(self, key: bytes) -> None:
        self._note(key, present=False)

    def range(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Return an iterator over the keys from ``start`` to before ``stop`` (None: to the last), as they are now."""
        return _range(self._blocks, start, stop)

    def _note(self, key: bytes, *, present: bool) -> None:
        with self._lock:
            if self._changes is None:
                self._change(key, present=present)
            else:
                self._changes.append((key, present))

    def _change(self, key: bytes, *, present: bool) -> None:
        firsts, blocks = self._blocks
        number = max(bisect_right(firsts, key) - 1, 0)
        block = blocks[number] if blocks else []
        at = bisect_left(block, key)
        if (at < len(block) and block[at] == key) is present:
            return
        changed = [*block[:at], key, *block[at:]] if present else [*block[:at], *block[at + 1 :]]
        half = len(changed) // 2
        parts = [changed[:half], changed[half:]] if len(changed) > 2 * _BLOCK else [changed] if changed else []
        self._blocks = (
            [*firsts[:number], *(part[0] for part in parts), *firsts[number + 1 :]],
            [*blocks[:number], *parts, *blocks[number + 1 :]],
        )


def _range(blocks_by_key: Blocks, start: bytes, stop: bytes | None) -> Iterator[bytes]:
    firsts, blocks = blocks_by_key
    first = max(bisect_right(firsts, start) - 1, 0)
    for number in range(first, len(blocks)):
        block = blocks[number]
        begin = bisect_left(block, start) if number == first else 0
        if stop is not None and block[-1] >= stop:
            yield from block[begin : bisect_left(block, stop)]
            return
        yield from block[begin:] if begin else block


def bounds(prefix: str) -> tuple[bytes, bytes | None]:
    """Return from where to before where keys with this prefix lie. UTF-8 has no byte 0xff, so the last one can grow."""
    start = encode_lookup_key(prefix)
    return start, start[:-1] + bytes([start[-1] + 1]) if start else None
