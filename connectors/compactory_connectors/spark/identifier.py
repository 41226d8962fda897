"""A column's name as Spark's SQL and column expressions have it."""

from __future__ import annotations

__all__ = ["quoted"]


def quoted(name: str) -> str:
    """The name within backticks, so that a dot in it, say, does not reach into a struct."""
    return "`" + name.replace("`", "``") + "`"
