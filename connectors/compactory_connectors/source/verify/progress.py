"""The progress of a comparison while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Progress", "untold"]

Progress: TypeAlias = Callable[[str, int], None]
"""Told what is being done, and how many rows or records of it are done."""


def untold(_doing: str, _done: int) -> None:
    """Nobody wants to know."""
