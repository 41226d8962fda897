"""A source without Kafka: its polls are driven page by page, and its topic is a dict."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import replace

import psycopg

from compactory_connectors.source.offsets.offset import SourceOffset
from compactory_connectors.source.offsets.offset_parts import Phase
from compactory_connectors.source.planning.planner import plan_tables
from compactory_connectors.source.polling.reader import RecordBatch
from compactory_connectors.source.polling.table_reader import open_reader
from compactory_connectors.source.postgres.poll_transaction import TableReplaced
from compactory_connectors.source.postgres.server import Server
from compactory_connectors.source.verify.key_ranges import living_keys
from tests.source.harness import holding
from tests.source.history import LOCK_TIMEOUT, Layout
from tests.source.poller import config, settings

__all__ = ["Follower", "values"]


class Follower:
    """A source without Kafka, between whose pages other things happen; only what was stored survives a kill."""

    def __init__(self, url: str, layout: Layout, log: list[str]) -> None:
        changes = {"compactory__soft__delete__column": "is_active"} if layout.soft else {}
        options = f"{url}?options={LOCK_TIMEOUT.replace(' ', '%20').replace('=', '%3D')}"
        kinds = "PARTITIONED TABLE" if layout.partitioned else "TABLE"
        self._config = config(
            settings(options, "timestamp+incrementing", table__whitelist="terminal", table__types=kinds, **changes)
        )
        self._log = log
        self.topic: dict[bytes, bytes] = {}
        self.stored: bytes | None = None
        self.unexplained: list[tuple[bytes, bytes | None]] = []
        self._pages: Generator[RecordBatch] | None = None
        self._server: Server | None = None
        self.start()

    def start(self) -> None:
        """A new process."""
        self._server = Server.open(self._config.connection.conninfo)
        (plan,) = plan_tables(self._server, self._config)
        offset = SourceOffset.loads(self.stored) if self.stored else None
        self.reader = open_reader(self._server, plan, offset, (plan.topic, None))
        self._comparison = holding(self.topic) if self.reader.offset.phase is Phase.COMPARING else None

    def kill(self) -> None:
        """As kill -9 does: at whatever page it was."""
        self._log.append("source: killed")
        self._end_poll()
        assert self._server is not None
        self._server.close()
        self.start()

    def close(self) -> None:
        self._end_poll()
        if self._server is not None:
            self._server.close()

    def _end_poll(self) -> None:
        if self._pages is not None:
            self._pages.close()
        self._pages = None

    def step(self, page_rows: int) -> None:
        """Publish the next page of a poll, or begin one."""
        try:
            if self._pages is None:
                assert self._server is not None
                if self.reader.is_durable and self.reader.is_idle(self._server.current_snapshot()):
                    return None
                self._log.append(f"source: poll in pages of {page_rows}")
                expect = self._comparison.expect if self._comparison is not None else None
                self._pages = self.reader.batches(page_rows, expect=expect)
            batch = next(self._pages, None)
        except TableReplaced:
            self._log.append("source: the table is another one")
            return self.kill()
        except psycopg.errors.LockNotAvailable:
            self._end_poll()
            return None
        if batch is None:
            self._pages = None
            return self.sweep() if self.reader.offset.sweep else None
        return self._publish(batch)

    def settle(self) -> None:
        """Poll to the end."""
        self._end_poll()
        self.step(10_000)
        while self._pages is not None:
            self.step(10_000)

    def _publish(self, batch: RecordBatch) -> None:
        if self._comparison is not None:
            batch = self._comparison.without_known(batch, self.reader.plan)
        self._comparison = self._comparison if batch.offset.phase is Phase.COMPARING else None
        self._log.append(f"source: {len(batch.records)} records {batch.resend_reason or ''}")
        for record in batch.records:
            key, value = record[0], record[1]
            assert key is not None
            if batch.resend_reason is None and value is not None and self.topic.get(key) == value:
                self.unexplained.append((key, value))
            if value is None:
                self.topic.pop(key, None)
            else:
                self.topic[key] = value
        self.reader.acknowledge(batch)
        if batch.persist:
            self.stored = batch.offset.dumps()

    def sweep(self) -> None:
        """Remove keys that the table lacks."""
        try:
            assert self._server is not None
            keys = {key for chunk in living_keys(self._server, self.reader.plan) for key in chunk}
        except psycopg.errors.LockNotAvailable:
            return
        for key in self.topic.keys() - keys:
            del self.topic[key]
        self._publish(RecordBatch([], replace(self.reader.offset, sweep=False)))

    def values(self) -> dict[bytes, str]:
        """The topic in the form of ``living``."""
        return values(self.topic)


def values(topic: Mapping[bytes, bytes]) -> dict[bytes, str]:
    """A topic's newest values in the form of ``living``."""
    found = {}
    for key, value in topic.items():
        row = json.loads(value)
        found[key] = repr((row["slot"], row["acquirer"], row["value"], row["is_active"]))
    return found
