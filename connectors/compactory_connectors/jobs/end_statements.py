"""The statements that commit the outcomes of attempts, on a connection of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_sql import query

from .rows import Outcome, outcomes_json

__all__ = ["Commit", "EndStatements"]


@dataclass(slots=True)
class Commit:
    """The commit of outcomes. ``ids``: the jobs that this executor still had; None: not committed."""

    ids: frozenset[int] | None = None


class EndStatements:
    """Owned by the keeper's thread. Raises psycopg.Error."""

    def __init__(self, connection: WatchedConnection) -> None:
        self._connection = connection

    @contextmanager
    def finish(self, outcomes: Sequence[Outcome], commit: Commit) -> Iterator[None]:
        """Commit outcomes in one transaction, while the body claims further jobs.

        The commit is complete at the end of the body, also if that raises.
        """
        if not outcomes:
            commit.ids = frozenset()
            yield
            return
        error: psycopg.Error | None = None
        with self._connection.pipeline():  # the server begins at once; the end of the pipeline commits
            ended = self._connection.execute(query("jobs/finish"), outcomes_json(outcomes))
            if any(outcome.state == "scheduled" and not outcome.delay for outcome in outcomes):
                self._connection.execute(query("jobs/notify"))
            try:
                yield
            except psycopg.Error as raised:
                error = raised
        commit.ids = frozenset(itertools.chain.from_iterable(ended.fetchall()))
        if error is not None:
            raise error
