"""The memory that requests and answers of a server may take together."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from . import limits
from .errors import Overloaded

__all__ = ["HELD_BYTES", "Budget", "HeldBytes"]

HELD_BYTES = "compactory.held_bytes"  # where the ASGI scope has the `HeldBytes` of a request


class Budget:
    """Counts the bytes of bodies that are being read or worked on, and of answers that clients have not read yet.

    Owned by the event loop. ``is_full``: True while new requests are refused, except those for probes and metrics.
    """

    def __init__(self) -> None:
        self.used_bytes = 0
        self.is_full = False

    def add(self, size: int) -> None:
        """Count bytes that are held already; a negative number of bytes is released."""
        self.used_bytes += size
        self.is_full = self.used_bytes >= limits.IN_FLIGHT_BYTES

    def check(self, size: int = 0) -> None:
        """Raise Overloaded where so many bytes more are too many."""
        if self.is_full or self.used_bytes + size > limits.IN_FLIGHT_BYTES:
            raise Overloaded(
                f"requests under way and answers that nobody has read take {self.used_bytes >> 20} of"
                f" {limits.IN_FLIGHT_BYTES >> 20} MiB; ask again, or another server"
            )


class HeldBytes:
    """The bytes that one holder has of the budget. Use it in a ``with`` block, or release it by ``set(0)``."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.set(0)

    def grow(self, size: int) -> None:
        """Hold so many bytes more. Raises Overloaded."""
        self._budget.check(size)
        self.set(self.size + size)

    def set(self, size: int) -> None:
        """Hold so many bytes from now on, whether or not they fit."""
        self._budget.add(size - self.size)
        self.size = size
