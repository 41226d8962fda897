"""What is fixed about a table for a session: its columns, its topic, how a row becomes a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .server import RawRow

__all__ = ["RowPlan", "TablePlan"]


class RowPlan(Protocol):
    """How a row of the table becomes a record."""

    @property
    def columns(self) -> Sequence[str]: ...
    @property
    def key_columns(self) -> Sequence[str]: ...
    def render(self, raw: RawRow) -> tuple[bytes | None, bytes]: ...
    def render_key(self, raw: RawRow) -> bytes | None: ...


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
    soft_delete: str | None = None
    tombstones: bool = True
    adopted: bool = False
    notifies: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def qualified(self) -> str:
        """``schema.table`` for people."""
        return f"{self.schema}.{self.name}"
