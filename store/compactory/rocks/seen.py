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

    def known(self, part: bytes, names: Collection[bytes]) -> list[bytes]:
        """Return those names of a part that may have been added."""
        return [] if self._empty or not names else self._among(names, _places(part, names))

    def add(self, part: bytes, names: Collection[bytes]) -> list[bytes]:
        """Remember names of a part; return those that may have been added before."""
        if not names:
            return []
        places, slots = _places(part, names), self._slots
        before = [] if self._empty else self._among(names, places)
        self._empty = False
        for place in places:
            slots[place] = 1
        return before

    def _among(self, names: Collection[bytes], places: list[int]) -> list[bytes]:
        found = itemgetter(*places)(self._slots) if len(places) > 1 else (self._slots[places[0]],)
        return list(compress(names, found)) if 1 in found else []


def _places(part: bytes, names: Collection[bytes]) -> list[int]:
    salt, mask = hash(part), _SLOTS - 1
    return [(hash(name) ^ salt) & mask for name in names]
