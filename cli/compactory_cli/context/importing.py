"""Imports MODULE:NAME, an object of the user's code."""

from __future__ import annotations

import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import TypeVar

from .session import refuse

__all__ = ["import_object"]

T = TypeVar("T")


def import_object(place: str, kind: type[T], example: str) -> T:
    """Return the object, of a module in the current folder or an installed one. Raises ConfigError for no ``kind``."""
    module, _, name = place.partition(":")
    kind_name = kind.__name__
    if not module or not name:
        refuse(f"{place!r} names no {kind_name}: give MODULE:NAME, such as {example}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        attribute = resolve_name(place)
    except (ImportError, AttributeError, ValueError) as error:
        refuse(f"{place}: {error}")
    if not isinstance(attribute, kind):
        refuse(f"{place} is not a {kind_name}, but {type(attribute).__name__}")
    return attribute
