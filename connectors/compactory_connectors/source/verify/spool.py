"""Short entries of one length, sorted into buckets, in bounded memory: what does not fit is on disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import IO

__all__ = ["BUCKETS", "Spool"]

BUCKETS = 1024


class Spool:
    """Entries by bucket, in the order in which they came. Owned by one thread; close it.

    Writers append to ``buckets[n]`` themselves, for a call each would cost more than everything else, and call
    :meth:`settle` now and then.
    """

    def __init__(self, length: int, *, limit: int = 96 << 20) -> None:
        self.length = length
        self.buckets = [bytearray() for _ in range(BUCKETS)]
        self._limit = limit
        self._file: IO[bytes] | None = None
        self._written = 0
        self._places: list[list[tuple[int, int]]] = [[] for _ in range(BUCKETS)]

    def settle(self) -> None:
        """Move everything to disk where it has become too much for memory."""
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
        """The entries of a bucket."""
        parts = [os.pread(self._file.fileno(), size, at) for at, size in self._places[number]] if self._file else []
        whole = b"".join([*parts, self.buckets[number]])
        length = self.length
        return [whole[start : start + length] for start in range(0, len(whole), length)]

    def drain(self) -> Iterator[list[bytes]]:
        """The entries of one bucket after the other, each forgotten when it has been handed out."""
        for number in range(BUCKETS):
            found = self.entries(number)
            self.buckets[number] = bytearray()
            yield found

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
