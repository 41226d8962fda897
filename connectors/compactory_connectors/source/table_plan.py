"""What is fixed about a table for a session: its columns, its topic, how a row becomes a record."""

from __future__ import annotations

from dataclasses import dataclass

from .chain import RowPlan

__all__ = ["TablePlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """What is fixed about a table for a session."""

    schema: str
    name: str
    oid: int
    topic: str
    rows: RowPlan
    timestamp: str
    incrementing: str
    key_types: tuple[str, ...]
    shape: str
    soft_delete: str | None = None
    tombstones: bool = True
    adopted: bool = False
    notifies: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def qualified(self) -> str:
        """``schema.table`` for people."""
        return f"{self.schema}.{self.name}"
