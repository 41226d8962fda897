"""Reads the offsets file of a standalone Kafka Connect worker: a serialised ``HashMap<byte[], byte[]>``. Pure.

Source: Java Object Serialization Specification, version 6, chapter 6 "Object Serialization Stream Protocol"; Kafka
Connect's ``FileOffsetBackingStore``. Nothing but such a map is understood, and nothing is ever executed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["read_byte_map"]

_HEAD = bytes.fromhex("aced00057372") + b"\x00\x11java.util.HashMap"  # magic, version, an object of the class
_FIELDS = b"xp"  # the end of the class, and no class above it
_ARRAY_CLASS = b"ur\x00\x02[B"
_ARRAY_AGAIN, _NULL, _REFERENCE, _END = b"uq", b"p", b"q", b"x"
_FIRST_HANDLE = 0x7E0000


def read_byte_map(raw: bytes) -> dict[bytes, bytes | None]:
    """The entries of the map; one whose key is null is left out. Raises ValueError when it is something else."""
    try:
        return {key: value for key, value in _Stream(raw).pairs() if key is not None}
    except (IndexError, struct.error) as error:
        raise ValueError(f"the file ends early: {error}") from error


class _Stream:
    def __init__(self, raw: bytes) -> None:
        if not raw.startswith(_HEAD):
            raise ValueError("not a serialised java.util.HashMap, which a standalone worker's offsets file is")
        self._raw = raw
        head, fields, _ = raw.partition(_FIELDS)
        if not fields:
            raise IndexError(f"byte {len(raw)} is its last")
        self._at = len(head + fields) + 8  # loadFactor and threshold
        self._arrays: dict[int, bytes] = {}
        self._handles = 2  # the class and the map have the first two

    def pairs(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        kind, length, _capacity, size = struct.unpack(">cBII", self._take(10))
        if (kind, length) != (b"w", 8) or size > len(self._raw):
            raise ValueError("not the entries of a java.util.HashMap")
        for _ in range(size):
            yield self._item(), self._item()
        if self._take(1) != _END:
            raise ValueError("there is more behind the entries")

    def _item(self) -> bytes | None:
        """A byte array, one that came before, or null."""
        kind = self._take(1)
        if kind == _NULL:
            return None
        if kind == _REFERENCE:
            handle = self._number() - _FIRST_HANDLE
            if handle not in self._arrays:
                raise ValueError("an entry is no byte array")
            return self._arrays[handle]
        return self._array(kind + self._take(1))

    def _array(self, head: bytes) -> bytes:
        if head == _ARRAY_CLASS[:2]:
            if self._take(len(_ARRAY_CLASS) - 2) != _ARRAY_CLASS[2:]:
                raise ValueError("an entry is no byte array")
            self._take(8 + 1 + 2 + len(_FIELDS))  # version, flags, no fields
            self._handles += 1
        elif head == _ARRAY_AGAIN:
            self._number()
        else:
            raise ValueError("an entry is no byte array")
        handle, self._handles = self._handles, self._handles + 1
        self._arrays[handle] = self._take(self._number())
        return self._arrays[handle]

    def _number(self) -> int:
        (number,) = struct.unpack(">I", self._take(4))
        return int(number)

    def _take(self, count: int) -> bytes:
        taken = self._raw[self._at : self._at + count]
        if len(taken) < count:
            raise IndexError(f"byte {len(self._raw)} is its last")
        self._at += count
        return taken
