"""A transaction that has been open for long, for people. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

__all__ = ["OpenTransaction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """Who runs or has prepared a transaction. Times in seconds since 1970, by the clock of this host.

    None is what this role is not shown (others' times need ``pg_read_all_stats``; then ``since`` is when it was first
    seen), or what a prepared one has not. The text of the query is left out: it may hold values of rows.
    """

    xid: int
    database: str | None
    user: str | None
    pid: int | None = None
    application: str | None = None
    state: str | None = None
    since: float | None = None
    query_since: float | None = None
    gid: str | None = None

    def __str__(self) -> str:
        began = f"open since {_moment(self.since)}" if self.since is not None else "open since a time not shown to us"
        if self.gid is not None:
            return f"prepared transaction {self.gid!r} of user {self.user} in {self.database}, {began}"
        last = f", last query begun {_moment(self.query_since)}" if self.query_since is not None else ""
        who = f"user {self.user}, application {self.application or 'without a name'}"
        return f"pid {self.pid} ({who}, {self.state or 'state not shown to us'}) in {self.database}, {began}{last}"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
