"""Which server an offset's transaction ids belong to. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["STORED_FIELDS", "Identity"]

STORED_FIELDS = (
    "system_identifier",
    "timeline",
    "postmaster_start",
    "statistics_start",
    "table_oid",
    "database_oid",
    "session",
)
"""The fields that an offset holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which server and table the transaction ids of an offset belong to.

    ``statistics_start`` has times that all change when the server recovers from a crash, its own or that of a backend
    (an out-of-memory kill, which the postmaster and its start time survive). A clean shutdown keeps the statistics, and
    whoever resets some of them leaves the others.

    ``session`` is an id that the source wrote into the database when it began to publish; ``sessions`` are those that
    the database has, None where it was not asked. An older copy of the database lacks the newer ones.
    """

    system_identifier: str
    timeline: int
    postmaster_start: str
    statistics_start: str
    table_oid: int
    database_oid: int = 0
    session: str | None = None
    sessions: frozenset[str] | None = field(default=None, compare=False)

    def same_history(self, other: Identity) -> bool:
        """Whether transaction ids of both can be compared (a restarted server: yes; promoted or restored: no)."""
        return (self.system_identifier, self.timeline, self.database_oid, self.table_oid) == (
            other.system_identifier,
            other.timeline,
            other.database_oid,
            other.table_oid,
        ) and self._remembers(other)

    def following(self, other: Identity) -> Identity:
        """As it is stored behind the offset of ``other``: what was not asked of the database stays as it was."""
        return replace(self, session=other.session) if self.sessions is None else self

    def _remembers(self, other: Identity) -> bool:
        """Whether the database is no older than that of ``other``, as far as sessions tell."""
        if self.sessions is None or other.session is None:
            return True
        return other.session == self.session or other.session in self.sessions

    def ahead_of(self, other: Identity) -> bool:
        """Whether the other is a primary that was left behind when a standby of it was promoted (or a copy of it)."""
        return self.system_identifier == other.system_identifier and self.timeline > other.timeline

    def same_memory(self, other: Identity) -> bool:
        """Whether the server has forgotten nothing in between: it ran on, or was shut down in order and started."""
        return self.same_history(other) and bool(self._statistics & other._statistics)

    @property
    def _statistics(self) -> set[str]:
        return set(self.statistics_start.split(","))

    @classmethod
    def read(cls, value: dict[str, Any]) -> Identity:
        """Read `STORED_FIELDS`, or less of them. Raises TypeError or ValueError when it is something else."""
        return cls(
            system_identifier=str(value.get("system_identifier") or ""),
            timeline=int(value.get("timeline") or 0),
            postmaster_start=str(value.get("postmaster_start") or ""),
            statistics_start=str(value.get("statistics_start") or ""),
            table_oid=int(value.get("table_oid") or 0),
            database_oid=int(value.get("database_oid") or 0),
            session=value.get("session"),
        )
