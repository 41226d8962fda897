"""Which names a load may have met before: what spares it a read per record. Pure."""

from __future__ import annotations

from collections.abc import Collection
from itertools import compress
from operator import itemgetter

__all__ = ["Seen"]

_EXACT = 1_000_000  # names that are kept as they are, 100 bytes each; from then on there is only the filter
_SLOTS = 1 << 25  # bytes; at 10 million names one in seven new ones is taken for known, and looked up in vain


class Seen:
    """What it does not know was never added; what it knows was, or beyond a million names may have been.

    Sets cost 0.1 µs a name; a filter of a byte a slot and one hash, which Python reads and writes in whole columns,
    0.3 µs and no more than 32 MB. A proper Bloom filter would take a µs. Belongs to one thread.
    """

    def __init__(self) -> None:
        self._names: dict[bytes, set[bytes]] | None = {}
        self._slots = bytearray()

    def known(self, part: bytes, names: Collection[bytes]) -> list[bytes]:
        """Return those names of a part that may have been added."""
        if self._names is None:
            return self._among(names, self._places(part, names)) if names else []
        held = self._names.get(part)
        return [] if not held or held.isdisjoint(names) else [name for name in names if name in held]

    def add(self, part: bytes, names: Collection[bytes]) -> list[bytes]:
        """Remember names of a part; return those that may have been added before."""
        if not names:
            return []
        if self._names is None:
            places = self._places(part, names)
            before = self._among(names, places)
            self._fill(places)
            return before
        before = self.known(part, names)
        self._names.setdefault(part, set()).update(names)
        if sum(map(len, self._names.values())) > _EXACT:
            self._give_up_names(self._names)
        return before

    def _give_up_names(self, names: dict[bytes, set[bytes]]) -> None:
        self._names, self._slots = None, bytearray(_SLOTS)
        for part in list(names):
            self._fill(self._places(part, names.pop(part)))

    def _fill(self, places: list[int]) -> None:
        slots = self._slots
        for place in places:
            slots[place] = 1

    def _among(self, names: Collection[bytes], places: list[int]) -> list[bytes]:
        found = itemgetter(*places)(self._slots) if len(places) > 1 else (self._slots[places[0]],)
        return list(compress(names, found)) if 1 in found else []

    def _places(self, part: bytes, names: Collection[bytes]) -> list[int]:
        salt, mask = hash(part), _SLOTS - 1
        return [(hash(name) ^ salt) & mask for name in names]
