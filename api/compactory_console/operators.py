"""Calls of operators' functions, which wait for Postgres or Kafka, in threads of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeVar

import psycopg

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory_connectors.outbox.statements import open_outbox
from compactory_connectors.postgres.jdbc_url import Connection
from compactory_connectors.postgres.postgres_errors import postgres_errors
from compactory_connectors.source.config.connector import ConnectorConfig

from .options import ConsoleOptions
from .outage import OutsideServer

__all__ = ["Open", "Operators", "open_outbox_part"]

R = TypeVar("R")

Open = Callable[[Mapping[str, Any], str], psycopg.Connection[Any]]
"""Opens a connection of a part (jobs, outbox, sink) for a purpose."""

_THREADS = 8
_TIMEOUT_MS = 5000  # of a statement
_OUTAGE_SECONDS = 3  # after which a server that does not answer counts as not reached


class Operators:
    """Runs functions with a connection to the database, or with the cluster. Owned by one event loop.

    ``servers`` are the database and the cluster, as far as the console has them.
    """

    def __init__(self, options: ConsoleOptions) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "compactory-console")
        self._database = self._cluster = None
        if (postgres := options.postgres) is not None:
            self._postgres = _limited(postgres)
            self._database = OutsideServer("Postgres", postgres.server, lambda: asyncio.to_thread(self._ask_postgres))
        if (kafka := options.kafka) is not None:
            self._kafka = kafka
            self._cluster = OutsideServer(
                "Kafka", kafka.bootstrap, lambda: asyncio.to_thread(kafka.cluster_id, _OUTAGE_SECONDS)
            )
        self.servers = [server for server in (self._database, self._cluster) if server is not None]

    async def in_database(self, function: Callable[[psycopg.Connection[Any]], R], connect: Open | None = None) -> R:
        """Return the result of a function of a connection in autocommit, which ``connect`` opens if given.

        Raises ConfigError without a database or where schema compactory lacks something, Unreachable.
        """
        if self._database is None:
            raise ConfigError("the console has no database: write url into [postgres] of compactory.toml")
        postgres = self._postgres

        def call() -> R:
            with postgres_errors(postgres), closing((connect or _connect)(postgres.conninfo, "console")) as connection:
                return function(connection)

        return await self._database.result(lambda: self._run(call))

    async def in_kafka(self, function: Callable[[Kafka], R]) -> R:
        """Return the result of a function of the cluster. Raises ConfigError without one, Unreachable."""
        if self._cluster is None:
            raise ConfigError("the console has no Kafka: write bootstrap.servers into [kafka] of compactory.toml")
        return await self._cluster.result(lambda: self._run(lambda: function(self._kafka)))

    async def in_tables(self, connector: ConnectorConfig, function: Callable[[ConnectorConfig], R]) -> R:
        """Return the result of a function of a connector, whose statements are given little time."""
        limited = replace(connector, connection=_limited(connector.connection))
        return await self._run(lambda: function(limited))

    def close(self) -> None:
        """End the threads, without those calls that have not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask_postgres(self) -> None:
        with postgres_errors(self._postgres), closing(_connect(self._postgres.conninfo, "console")) as connection:
            connection.execute("SELECT")

    async def _run(self, call: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def open_outbox_part(conninfo: Mapping[str, Any], purpose: str) -> psycopg.Connection[Any]:
    """Return a connection to a database with the outbox's tables."""
    return open_outbox(conninfo, purpose)[0]


def _limited(postgres: Connection) -> Connection:
    """Return the connection with a limit of the time that it and its statements may take."""
    options = f"{postgres.conninfo.get('options', '')} -c statement_timeout={_TIMEOUT_MS}".strip()
    return Connection({"connect_timeout": str(_OUTAGE_SECONDS), **postgres.conninfo, "options": options})


def _connect(conninfo: Mapping[str, Any], purpose: str) -> psycopg.Connection[Any]:
    parameters: dict[str, Any] = {**conninfo, "application_name": f"compactory-{purpose}"}
    return psycopg.connect(**parameters, autocommit=True)
