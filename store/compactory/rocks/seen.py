"""Which names a load may have met before: what spares it a read per record. Pure."""

from __future__ import annotations

from collections.abc import Collection
from itertools import compress
from operator import itemgetter

__all__ = ["Seen"]

_SLOTS = 1 << 25  # bytes; at 10 million names one in seven new ones is taken for known, and looked up in vain


class Seen:
    """A filter: what it does not know was never added; what it knows may have been. Belongs to one thread.

    A byte a slot and one hash, as Python reads and writes whole columns of them at some 50 ns a name; a proper Bloom
    filter would take a µs. The memory is touched, and so taken, as names are added.
    """

    def __init__(self) -> None:
        self._slots = bytearray(_SLOTS)
        self._empty = True

    def add(self, part: bytes, names: Collection[bytes]) -> None:
        """Remember names of a part."""
        slots = self._slots
        self._empty = self._empty and not names
        for place in _places(part, names):
            slots[place] = 1

    def known(self, part: bytes, names: Collection[bytes]) -> list[bytes]:
        """Return those names that may have been added."""
        if self._empty or not names:
            return []
        places = _places(part, names)
        found = itemgetter(*places)(self._slots) if len(places) > 1 else (self._slots[places[0]],)
        return list(compress(names, found)) if 1 in found else []


def _places(part: bytes, names: Collection[bytes]) -> list[int]:
    salt, mask = hash(part), _SLOTS - 1
    return [(hash(name) ^ salt) & mask for name in names]
