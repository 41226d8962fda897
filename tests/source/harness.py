"""A table reader driven by hand: its pages are applied to a dict, as a compacted topic would be read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg

from compactory_connectors.source.horizon import Horizon
from compactory_connectors.source.offset import SourceOffset
from compactory_connectors.source.server import Server, TableReplaced
from compactory_connectors.source.table import TableReader
from compactory_connectors.source.table_plan import TablePlan

COLUMNS = ("id", "terminal_id", "acquirer_id", "is_active")


class PlainRows:
    """A row plan without converters: values are columns joined by a bar."""

    columns = COLUMNS

    def __init__(self, key: str) -> None:
        """A key that is NULL is the text ``null``, as JSON's is."""
        self.key_columns = (key,)
        self._position = COLUMNS.index(key)

    def render(self, raw: Sequence[bytes | None]) -> tuple[bytes | None, bytes]:
        return self.render_key(raw), b"|".join(part or b"" for part in raw[: len(COLUMNS)])

    def render_key(self, raw: Sequence[bytes | None]) -> bytes | None:
        part = raw[self._position]
        return b"null" if part is None else part


class Feed:
    """Polls ``terminal_acquirer`` and keeps what a topic would hold. ``sent`` lists every record in order."""

    def __init__(
        self, url: str, *, key: str = "id", adopted: bool = False, table: str = "terminal_acquirer", **changes: Any
    ) -> None:
        self.url = url
        self.table = table
        self.topic: dict[bytes, bytes] = {}
        self.sent: list[tuple[bytes | None, bytes | None]] = []
        self.stored: bytes | None = None
        self._key, self._adopted, self._changes = key, adopted, changes
        self.restart()

    def restart(self) -> None:
        """A new process: only the stored offset is known."""
        if hasattr(self, "server"):
            self.server.close()
        self.server = Server.open({"conninfo": self.url})
        find = "SELECT oid::int8 FROM pg_class WHERE relname = %s"
        (oid,) = self.server.connection.execute(find, [self.table]).fetchone()
        plan = TablePlan(
            schema="public",
            name=self.table,
            oid=oid,
            topic="t",
            rows=PlainRows(self._key),
            timestamp="updated_date",
            incrementing="id",
            key_types=("bigint" if self._key == "id" else "text",),
            shape=self.server.shape(oid),
            soft_delete="is_active",
            adopted=self._adopted,
        )
        offset = SourceOffset.loads(self.stored) if self.stored else None
        self.reader = TableReader(self.server, replace(plan, **self._changes), offset)

    def poll(self, page_rows: int = 10_000, *, pages: int | None = None) -> list[tuple[bytes | None, bytes | None]]:
        """One poll, or with ``pages`` only its first pages; the records of it."""
        records = []
        for number, batch in enumerate(self.reader.pages(page_rows), 1):
            records += batch.records
            for key, value in batch.records:
                if value is None:
                    self.topic.pop(key, None)
                else:
                    self.topic[key] = value
            self.reader.acknowledge(batch)
            if batch.persist:
                self.stored = batch.offset.dumps()
            if number == pages:
                break
        self.sent += records
        return records

    def poll_until_replaced(self) -> None:
        """One poll; a reader that wants to look at the table again is left for the next session."""
        with suppress(TableReplaced):
            self.poll()

    def living(self) -> list[bytes | None]:
        """The keys that a sweep finds in the table."""
        return [self.reader.plan.rows.render_key(row) for rows in self.reader.living_rows() for row in rows]

    @property
    def horizon(self) -> Horizon | None:
        return self.reader.offset.horizon

    def close(self) -> None:
        self.server.close()


def expected(url: str) -> dict[bytes, bytes]:
    """What the topic must hold: every active row."""
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT id, terminal_id, acquirer_id, is_active FROM terminal_acquirer").fetchall()
    return {str(row[0]).encode(): f"{row[0]}|{row[1]}|{row[2]}|t".encode() for row in rows if row[3]}
