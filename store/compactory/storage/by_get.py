"""Mappings that know how to get one entry, and follow from that."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

__all__ = ["ByGet"]


class ByGet(Mapping[bytes, bytes]):
    """A read-only mapping whose ``get`` is all that a lookup needs. No value is None."""

    @abstractmethod
    def get(self, name: bytes, default: Any = None) -> Any:
        """Return the value of a name, or ``default``."""

    def __getitem__(self, name: bytes) -> bytes:
        found: bytes | None = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def __contains__(self, name: object) -> bool:
        return isinstance(name, bytes) and self.get(name) is not None
