"""The database beneath a topic storage: its keys are in order, and it is written in batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Self

from compactory.errors import BackendCorrupt, CompactoryError

__all__ = ["PAGE", "Database", "Snapshot"]

PAGE = 1000  # keys that a scan takes at a time


class Snapshot(ABC):
    """A database as it was at one moment. For any thread.

    ``get``     key → value or None
    ``failed``  that of its database
    """

    get: Callable[[bytes], bytes | None]
    failed: Callable[[Exception], CompactoryError]

    def snapshot(self) -> Self:
        """Return itself: it does not change."""
        return self

    @abstractmethod
    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Yield the keys from ``start`` to before ``stop``, in order."""

    @abstractmethod
    def pairs(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values as `keys` yields keys."""

    def page(self, start: bytes, stop: bytes) -> list[bytes]:
        """Return the first 1,000 keys of those that `keys` yields."""
        return list(islice(self.keys(start, stop), PAGE))

    def release(self) -> None:  # noqa: B027 (one that goes with its last reader)
        """Let go of the state; reading it then raises StoreClosed."""


class Database(ABC):
    """A topic's generation. One thread writes, any thread reads.

    ``path``    its folder
    ``bulk``    it is being loaded, and has no readers yet
    ``damage``  the first damage that was met, by whichever thread
    ``get``     key → value or None: the library's own function, as a lookup counts tenths of microseconds; what it
                raises is for `failed`
    """

    path: Path
    bulk: bool
    damage: BackendCorrupt | None = None
    get: Callable[[bytes], bytes | None]

    def read(self, key: bytes) -> bytes | None:
        """Return a value, with errors that are ours."""
        try:
            return self.get(key)
        except Exception as error:
            raise self.failed(error) from error

    @contextmanager
    def mapped(self) -> Iterator[None]:
        """Map what the library raises to our errors."""
        try:
            yield
        except Exception as error:
            raise self.failed(error) from error

    @abstractmethod
    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of many keys."""

    @abstractmethod
    def batch(self) -> Any:
        """Return an empty batch."""

    @abstractmethod
    def write(self, batch: Any) -> None:
        """Apply a batch, all or nothing, visible at once."""

    @abstractmethod
    def flush(self, *, wait: bool = True) -> None:
        """Bring to disk what was written; without ``wait`` begin to."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """Return the state of this moment, for any thread."""

    @abstractmethod
    def reopen(self, *, bulk: bool) -> None:
        """Open the database anew, for another use. Nobody may be reading it."""

    @abstractmethod
    def figures(self) -> dict[str, float]:
        """Return what there is to say of its size and work."""

    def failed(self, error: Exception) -> CompactoryError:
        """Return what an error of the library means here; damage is remembered."""
        found = self._meaning(error)
        if isinstance(found, BackendCorrupt) and self.damage is None:
            self.damage = BackendCorrupt(*found.args)  # one that was never raised refers to no frames, and so not to us
        return found

    @abstractmethod
    def _meaning(self, error: Exception) -> CompactoryError:
        """Return our error for one of the library's."""

    @abstractmethod
    def close(self) -> None:
        """Bring everything to disk and close; idempotent."""
