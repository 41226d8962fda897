"""A table reader driven by hand: its pages are applied to a dict, as a compacted topic would be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import psycopg

from compactory_connectors.source.horizon import Horizon
from compactory_connectors.source.offset import SourceOffset
from compactory_connectors.source.server import Server
from compactory_connectors.source.table import TableReader
from compactory_connectors.source.table_plan import TablePlan

COLUMNS = ("id", "terminal_id", "acquirer_id", "is_active")


class PlainRows:
    """A row plan without converters: values are columns joined by a bar."""

    columns = COLUMNS

    def __init__(self, key: str) -> None:
        self.key_columns = (key,)
        self._position = COLUMNS.index(key)

    def render(self, raw: Sequence[bytes | None]) -> tuple[bytes | None, bytes]:
        return raw[self._position], b"|".join(part or b"" for part in raw[: len(COLUMNS)])

    def render_key(self, raw: Sequence[bytes | None]) -> bytes | None:
        return raw[self._position]


class Feed:
    """Polls ``terminal_acquirer`` and keeps what a topic would hold. ``sent`` lists every record in order."""

    def __init__(self, url: str, *, key: str = "id", adopted: bool = False, **changes: Any) -> None:
        self.url = url
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
        oid = self.server.connection.execute("SELECT 'terminal_acquirer'::regclass::oid::int8").fetchone()[0]
        plan = TablePlan(
            schema="public",
            name="terminal_acquirer",
            oid=oid,
            topic="t",
            rows=PlainRows(self._key),
            timestamp="updated_date",
            incrementing="id",
            key_types=("bigint" if self._key == "id" else "text",),
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
