"""The settings of our sessions, whatever role and database have."""

from __future__ import annotations

from contextlib import closing

from compactory_connectors.database.watched_connection import connect


def test_null_within_an_array_is_no_text(database: str) -> None:
    """Executors enqueue jobs by arrays: with ``array_nulls=off`` a job without a group was in the group NULL."""
    with closing(connect({"conninfo": database, "options": "-c array_nulls=off"})) as sql:
        assert sql.execute("SELECT %s::text[]", [["a", None]]).fetchone() == (["a", None],)
