"""Keeps short entries of one length in buckets, in bounded memory: on disk beyond a limit."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import IO

__all__ = ["BUCKETS", "Spool"]

BUCKETS = 1024


class Spool:
    """Entries by bucket, in the order of arrival. Owned by one thread; close it.

    Callers append to ``buckets[n]`` themselves, because a call for each entry is too slow, and then call
    :meth:`settle`.
    """

    def __init__(self, length: int, *, limit: int = 96 << 20) -> None:
        self.length = length
        self.buckets = [bytearray() for _ in range(BUCKETS)]
        self._limit = limit
        self._file: IO[bytes] | None = None
        self._written = 0
        self._places: list[list[tuple[int, int]]] = [[] for _ in range(BUCKETS)]

    def settle(self) -> None:
        """Move all entries to disk if they exceed the limit of memory."""
        if sum(map(len, self.buckets)) <= self._limit:
            return
        self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        for bucket, places in zip(self.buckets, self._places, strict=True):
            if bucket:
                self._file.write(bucket)
                places.append((self._written, len(bucket)))
                self._written += len(bucket)
                bucket.clear()
        self._file.flush()

    def entries(self, number: int) -> list[bytes]:
        parts = [os.pread(self._file.fileno(), size, at) for at, size in self._places[number]] if self._file else []
        whole = b"".join([*parts, self.buckets[number]])
        length = self.length
        return [whole[start : start + length] for start in range(0, len(whole), length)]

    def drain(self) -> Iterator[list[bytes]]:
        """Yield the entries of each bucket, and forget them."""
        for number in range(BUCKETS):
            entries = self.entries(number)
            self.buckets[number] = bytearray()
            yield entries

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
