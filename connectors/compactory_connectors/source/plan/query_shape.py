"""A digest of the columns that a query gives: what a session's plan of it rests on. Pure."""

from __future__ import annotations

import hashlib

from .catalog import Table

__all__ = ["shape_of_query"]


def shape_of_query(table: Table) -> str:
    """A digest of names, types and NOT NULL of the columns."""
    text = "\n".join(f"{column.name} {column.declared} {column.not_null}" for column in table.columns)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
