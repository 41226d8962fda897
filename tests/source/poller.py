"""A connector's tables read by hand, without Kafka: what each poll would send, and what a restart repeats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import sql

from compactory_connectors.source.config.connector import ConnectorConfig
from compactory_connectors.source.config.files import parse_connector
from compactory_connectors.source.offsets.offset import SourceOffset
from compactory_connectors.source.planning.planner import plan_tables
from compactory_connectors.source.planning.table_plan import TablePlan
from compactory_connectors.source.polling.reader import Reader
from compactory_connectors.source.polling.table_reader import open_reader
from compactory_connectors.source.postgres.server import Server

KEYED = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
    "transforms": "key,id",
    "transforms.key.type": "org.apache.kafka.connect.transforms.ValueToKey",
    "transforms.key.fields": "id",
    "transforms.id.type": "org.apache.kafka.connect.transforms.ExtractField$Key",
    "transforms.id.field": "id",
}
"""Records with the column id as their key."""


def settings(url: str, mode: str, **changes: Any) -> dict[str, Any]:
    """A connector's settings; ``__`` in a name stands for a dot, None leaves a key out."""
    given = {name.replace("__", "."): value for name, value in changes.items()}
    base = {"connection.url": url, "mode": mode, "topic.prefix": "p-", **KEYED}
    if mode in {"incrementing", "timestamp+incrementing"}:
        base["incrementing.column.name"] = "id"
    if mode in {"timestamp", "timestamp+incrementing"}:
        base["timestamp.column.name"] = "changed"
    if "query" not in given and "table.include.list" not in given:
        base["table.whitelist"] = "t"
    return {key: value for key, value in (base | given).items() if value is not None}


def config(written: Mapping[str, Any], name: str = "c") -> ConnectorConfig:
    """The connector of these settings."""
    return parse_connector(json.dumps(dict(written)), default_name=name, environment={})


class Poller:
    """Reads the first table of a connector; only what was stored survives a restart."""

    def __init__(self, url: str, mode: str, **changes: Any) -> None:
        self._config = config(settings(url, mode, **changes))
        self.stored: bytes | None = None
        self.sent: list[tuple[bytes | None, bytes | None]] = []
        self.skipped = 0
        self.server: Server | None = None
        self.reader: Reader
        self.plan: TablePlan
        self.restart()

    def restart(self) -> None:
        """A new process."""
        self.close()
        self.server = Server.open(self._config.connection.conninfo)
        try:
            (self.plan,) = plan_tables(self.server, self._config)
        except BaseException:
            self.close()
            raise
        offset = SourceOffset.loads(self.stored) if self.stored else None
        self.reader = open_reader(self.server, self.plan, offset, (self.plan.topic, None))

    def poll(self, page_rows: int = 10_000, *, pages: int | None = None) -> list[Any]:
        """The values of one poll, or of its first pages; tombstones as (key, None)."""
        found: list[Any] = []
        batches = self.reader.batches(page_rows)
        for number, batch in enumerate(batches, 1):
            found += [json.loads(value) if value is not None else (key, None) for key, value in batch.records]
            self.sent += batch.records
            self.skipped += len(batch.skipped)
            self.reader.acknowledge(batch)
            if batch.persist:
                self.stored = batch.offset.dumps()
            if number == pages:
                batches.close()
                break
        return found

    def ids(self, page_rows: int = 10_000, *, pages: int | None = None) -> list[int]:
        """The ids of one poll's rows."""
        return [row["id"] for row in self.poll(page_rows, pages=pages)]

    def close(self) -> None:
        """Let go of the server."""
        if self.server is not None:
            self.server.close()


def cleared(url: str) -> str:
    """A database that tests share, empty again: quicker than one for each."""
    with psycopg.connect(url, autocommit=True) as connection:
        schemas = connection.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'"
        ).fetchall()
        for (name,) in schemas:
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))
        connection.execute("CREATE SCHEMA public")
    return url
