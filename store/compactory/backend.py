"""Where a store keeps its entries. The engine writes through plain mappings; a backend only has to lend them."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Protocol

__all__ = ["Backend", "Memory"]


class Backend(Protocol):
    """Lends the mappings that tables write. One thread writes each of them, any thread may read."""

    def mapping(self, directory: str, part: str) -> MutableMapping[Any, Any]:
        """Return the mapping called ``part`` (``entries``, ``owners``, an index …) of a directory, empty if new."""
        ...

    def close(self) -> None:
        """Release everything. Called once, after the last write."""
        ...


class Memory:
    """Everything in dicts of this process; gone with it."""

    def mapping(self, directory: str, part: str) -> MutableMapping[Any, Any]:  # noqa: ARG002 (the protocol's)
        """Return a new dict."""
        return {}

    def close(self) -> None:
        """Nothing to release: the dicts go with the tables that hold them."""
