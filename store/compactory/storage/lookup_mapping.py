"""A base of mappings that implement only `get`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

__all__ = ["LookupMapping"]


class LookupMapping(Mapping[bytes, bytes]):
    """A read-only mapping whose ``get`` is all that a lookup needs. No value is None."""

    @abstractmethod
    def get(self, key: bytes, default: Any = None) -> Any:
        """Return the value of a key, or ``default``."""

    def __getitem__(self, key: bytes) -> bytes:
        value: bytes | None = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and self.get(key) is not None
