"""Heartbeats: a row that the source renews in Postgres and publishes, so that readers know how old their data is.

They distinguish an idle table from a source that hangs. A heartbeat takes the path of every change: a commit in
Postgres, the session's thread, a Kafka transaction. A fault that stops the publishing of tables stops heartbeats, too.
"""

from __future__ import annotations

import time
from typing import Final

import orjson
import psycopg
import structlog

from compactory.store_worker import HEARTBEATS_TOPIC
from compactory_connectors.kafka.publisher import TopicRefused
from compactory_connectors.postgres.postgres_errors import refusal
from compactory_sql import query

from ..config.connector import TopicCreation
from ..offsets.topics import ensure_topics
from ..postgres.server import Server
from .session_context import SessionContext

__all__ = ["Heartbeat"]

log = structlog.get_logger("compactory.source")

_NOT_POSSIBLE: Final = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.ReadOnlySqlTransaction,
)


class Heartbeat:
    """The heartbeats of one session. Owned by its thread. Raises psycopg.Error, and the errors of Kafka's side."""

    def __init__(self, context: SessionContext, server: Server) -> None:
        self._context = context
        self._server = server
        self._interval = context.connector.heartbeat_interval_ms / 1000
        self.due = float("inf")
        """The time of the next heartbeat, by the monotonic clock."""

    def open(self) -> None:
        """Create the topic and begin to send heartbeats, if the connector asks for them."""
        if self._interval:
            rules = {HEARTBEATS_TOPIC: TopicCreation(partitions=1)}
            self._context.board.warn(*ensure_topics(self._context.kafka, rules, create=self._context.create_topics))
            self.due = time.monotonic()

    def beat(self) -> None:
        """Renew the row and publish it if a heartbeat is due. On return Kafka has acknowledged it."""
        began = time.monotonic()
        if began < self.due:
            return
        self.due = began + self._interval
        name = self._context.connector.name
        try:
            row = self._server.connection.execute(query("heartbeat/beat"), {"connector": name}).fetchone()
        except psycopg.errors.LockNotAvailable:
            return  # somebody has locked the row; the next heartbeat is soon
        except _NOT_POSSIBLE as error:
            self._give_up(error)
            return
        assert row is not None
        committed_at = time.monotonic()
        value = orjson.dumps({"connector": name, "beats": row[1], "committed_at": row[0]})
        try:
            self._context.publisher.publish(HEARTBEATS_TOPIC, [(name.encode(), value)], None)
        except TopicRefused as error:
            self._context.board.warn(f"no heartbeats: Kafka refuses them, see the settings of topic {HEARTBEATS_TOPIC}")
            log.debug("heartbeat refused", connector=name, error=str(error))  # a different text each time
            return
        self._context.board.record_heartbeat(row[0] / 1000, time.monotonic() - committed_at)

    def _give_up(self, error: psycopg.Error) -> None:
        self.due = float("inf")
        self._context.board.warn(
            f"no heartbeats, although compactory.heartbeat.interval.ms asks for them: {refusal(error)}; compactory sql"
            " install makes compactory.heartbeats, compactory sql roles grants its rights, and a restart tries again"
        )
