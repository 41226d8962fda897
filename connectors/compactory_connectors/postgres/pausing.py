"""Names that operators have paused: kept in the database, and followed by running processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from compactory_sql import PAUSED_CHANNEL, query

from .operator_log import log_act, person
from .wakeup import receive_notifications

__all__ = ["PausableKind", "PauseResult", "Paused", "Pauses", "paused", "set_paused", "unseen"]

PausableKind: TypeAlias = Literal["jobs", "job-groups", "outbox", "sink"]
"""Types of jobs, groups of jobs, topics of the outbox, and sinks."""

_LOGGED: Final = {
    "jobs": ("jobs", "type"),
    "job-groups": ("jobs", "group"),
    "outbox": ("outbox", "topic"),
    "sink": ("sink", "sink"),
}
"""Part and field of the line in the operator log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """A name that an operator has paused."""

    part: PausableKind
    name: str
    since: datetime
    by: str


class PauseResult(NamedTuple):
    """``has_changed`` False: it was paused before. ``warning``: the name was not seen yet, so it may be wrong."""

    has_changed: bool
    warning: str | None = None


def paused(connection: psycopg.Connection[Any], *kinds: PausableKind) -> list[Paused]:
    """Return what is paused of these kinds. Raises psycopg.Error."""
    cursor = connection.cursor(row_factory=class_row(Paused))
    return cursor.execute(query("operators/paused"), {"parts": list(kinds)}).fetchall()


def set_paused(
    connection: psycopg.Connection[Any], kind: PausableKind, name: str, by: str | None, *, is_paused: bool
) -> bool:
    """Pause or resume a name and log that. Return False if it was paused or running before. Raises psycopg.Error."""
    action: Literal["pause", "resume"] = "pause" if is_paused else "resume"
    part, field = _LOGGED[kind]
    with connection.transaction():
        parameters = {"part": kind, "name": name, "by": person(by)}
        count = connection.execute(query(f"operators/{action}"), parameters).rowcount
        log_act(connection, part, action, {field: name}, count, by)
    return count > 0


def unseen(kind: str, name: str, names: Iterable[str]) -> str | None:
    """Return that the name is not one of ``names``, with the nearest of them; None if it is."""
    names = list(names)
    if name in names:
        return None
    similar = get_close_matches(name, names, n=3)
    remedy = f"did you mean {' or '.join(similar)}?" if similar else "is the name right?"
    return f"no {kind} {name!r} was seen yet: {remedy}"


class Pauses:
    """The paused names of some kinds. Owned by the thread of the connection, which is in autocommit and listens.

    Raises psycopg.Error.
    """

    def __init__(self, connection: psycopg.Connection[Any], *kinds: PausableKind) -> None:
        self._connection = connection
        self._kinds = kinds
        self._is_stale = True
        self._names: list[tuple[PausableKind, str]] = []
        connection.add_notify_handler(self._note)
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(PAUSED_CHANNEL)))

    def have_changed(self) -> bool:
        """Read the names again after a notification. Return True then, and at the first call. Never waits else."""
        receive_notifications(self._connection)
        if not self._is_stale:
            return False
        self._is_stale = False
        self._names = [(item.part, item.name) for item in paused(self._connection, *self._kinds)]
        return True

    def of(self, kind: PausableKind) -> frozenset[str]:
        """Return the paused names of a kind."""
        return frozenset(name for part, name in self._names if part == kind)

    def fields(self) -> list[dict[str, str]]:
        """Return part and name of each, for status and metrics."""
        return [{"part": part, "name": name} for part, name in self._names]

    def _note(self, notify: psycopg.Notify) -> None:
        if notify.channel == PAUSED_CHANNEL and notify.payload in self._kinds:
            self._is_stale = True
