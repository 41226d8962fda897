"""The known name that is most like an unknown one, as the end of an error. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest", "nearest_or_all"]


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ``; did you mean X?`` with the name most like ``name``, or nothing if none is like it."""
    by_lower = {item.lower(): item for item in names}
    close = difflib.get_close_matches(name.lower(), list(by_lower), 1)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


def nearest_or_all(name: str, names: Iterable[str]) -> str:
    """Return what `nearest` returns, or ``; known are X, Y`` if no name is like it."""
    all_names = list(names)
    return nearest(name, all_names) or f"; known are {', '.join(all_names)}"
