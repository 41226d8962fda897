"""The known name that is most like an unknown one, as the end of an error. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest", "nearest_or_all"]


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean X?`` for the known name most like ``name``, or nothing when none is like it."""
    by_lower = {item.lower(): item for item in known}
    close = difflib.get_close_matches(name.lower(), list(by_lower), 1)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


def nearest_or_all(name: str, known: Iterable[str]) -> str:
    """As `nearest`, and ``; known are X, Y`` when none is like it."""
    names = list(known)
    return nearest(name, names) or f"; known are {', '.join(names)}"
