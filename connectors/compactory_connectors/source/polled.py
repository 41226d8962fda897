"""One table of a session: its reader, when it is due, what of its topic is known, and what happened to it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from compactory.kafka import Kafka

from .backoff import Backoff
from .comparison import Comparison
from .control import Control, Stop
from .offset import SourceOffset, offset_key, query_key
from .page import PAGE_ROWS, Batch, Reader
from .publisher import Publisher
from .readers import COMPARING
from .record import RowError
from .status import StatusBoard
from .sweep import deleted, too_many, vanished
from .table_plan import TablePlan
from .topics import ensure, living_keys

if TYPE_CHECKING:
    from .connector_config import ConnectorConfig

__all__ = ["PolledTable", "Sink", "key_of"]

log = structlog.get_logger("compactory.source")

_LOGGED = 20
"""Skipped rows of one page that are logged one by one, where that is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """Where a session's records go."""

    connector: ConnectorConfig
    kafka: Kafka
    publisher: Publisher
    board: StatusBoard
    create_topics: bool = True
    control: Control = field(default_factory=Control)


@dataclass(slots=True, kw_only=True)
class PolledTable:
    """A table that is polled. Owned by the session's thread."""

    sink: Sink
    reader: Reader
    key: bytes
    others: list[str] = field(default_factory=list)
    """Other tables that are published to its topic."""
    due: float = 0.0
    failures: int = 0
    """Polls in a row that failed."""
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, limit=60.0))
    locks: Backoff = field(default_factory=lambda: Backoff(first=0.2, limit=5.0))
    """Pauses while somebody has locked the table."""
    _locked: bool = False
    _topic_keys: set[bytes] | None = None
    _held: bool = False
    _made: set[str] = field(default_factory=set)

    @property
    def plan(self) -> TablePlan:
        """What is fixed about it."""
        return self.reader.plan

    @property
    def name(self) -> str:
        """``schema.table`` for people."""
        return self.reader.plan.qualified

    @property
    def ailing(self) -> bool:
        """Whether its last poll failed, or found it locked."""
        return self.failures > 0 or self._locked

    def drain(self, stop: Stop) -> bool:
        """Publish everything one poll finds, or its pages before ``stop`` is set; whether that was anything."""
        sent = 0
        before = self.reader.offset
        self._compare(before)
        for batch in self.reader.pages(min(PAGE_ROWS, self.sink.connector.batch_max_rows)):
            if self._topic_keys is None and (batch.offset.sweep or self.plan.sweeps_always):
                # Before anything of ours is in it; nobody else writes it any more.
                self._topic_keys = living_keys(self.sink.kafka, self.plan.topic)
            self._report(batch)
            self._publish(batch)
            if self._topic_keys:
                self._topic_keys -= deleted(batch.records)
            sent += len(batch.records)
            if stop.is_set():
                return True
        if before.horizon is not None and self.reader.offset.sweep and not before.sweep:
            log.warning("another server or history: every row was sent again", table=self.name)
        if self.plan.sweeps_always or (self.reader.offset.sweep and not self._held):
            sent += self._sweep()
        self.failures = 0
        self._locked = False
        self.backoff.reset()
        self.locks.reset()
        self.sink.board.polled(self.name, sent)
        return sent > 0

    def failed(self, detail: str) -> None:
        """A poll failed: try again after a pause, unless that was tried often enough."""
        self.failures += 1
        most = self.sink.connector.retry_attempts
        if most > 0 and self.failures >= most:
            detail = f"{detail}; given up after {self.failures} attempts, as query.retry.attempts says"
            self.due = float("inf")
        else:
            self.due = time.monotonic() + max(self.backoff.pause(), self.sink.connector.poll_interval_ms / 1000)
        log.error("table failed", table=self.name, detail=detail)
        self.sink.board.table_failed(self.name, detail)

    def locked(self, holders: list[str]) -> None:
        """Somebody has locked the table: try again soon, without keeping the others waiting."""
        self._locked = True
        self.due = time.monotonic() + self.locks.pause()
        by = "; ".join(holders) or "a transaction that has ended meanwhile"
        detail = f"{self.plan.label} is locked by {by}; tried again by itself"
        self.sink.board.table_waits(self.name, detail)

    def _compare(self, offset: SourceOffset) -> None:
        reader = self.reader
        if offset.compare and isinstance(reader, COMPARING) and reader.comparison is None:
            reader.comparison = Comparison.of(self.sink.kafka, self.plan.topic)
            self._topic_keys = reader.comparison.living()

    def _report(self, batch: Batch) -> None:
        """Count rows that were skipped, and log what the connector wants to know of them."""
        if not batch.skipped:
            return
        errors = self.sink.connector.errors
        first = not self.sink.board.skipped(self.name, len(batch.skipped))
        shown = [_named(text, errors.name_rows) for text in batch.skipped[: _LOGGED if errors.log_each else int(first)]]
        for text in shown:
            log.warning("row skipped", table=self.name, reason=text)
        if len(batch.skipped) > len(shown):
            log.warning("rows skipped", table=self.name, count=len(batch.skipped))

    def _publish(self, batch: Batch) -> None:
        if batch.persist:
            if self.plan.rows.dated is not None:
                self._make_topics(batch)
            self.sink.publisher.publish(self.plan.topic, batch.records, (self.key, batch.offset.dumps()))
        self.reader.acknowledge(batch)

    def _make_topics(self, batch: Batch) -> None:
        """Make the topics that the time has brought."""
        names = {record[2] for record in batch.records if len(record) == 4} - self._made
        if names:
            rules = self.sink.connector.topics
            topics = {name: rules.of(name) for name in names}
            self.sink.board.warn(*ensure(self.sink.kafka, topics, create=self.sink.create_topics))
            self._made |= names

    def _sweep(self) -> int:
        """Remove keys from the topic that the table lacks, unless they may be another's or are suspiciously many."""
        known = self._topic_keys or set()
        gone, detail = self._vanished(known)
        if detail is not None:
            log.error("removal held", table=self.name, removed=len(gone), keys=len(known), detail=detail)
            self.sink.board.held(self.name, detail)
            self._held = True
            self._topic_keys = None
            return 0
        if self._held:
            self._held = False
            self.sink.board.held(self.name, None)
        for keys in _slices(sorted(gone)):
            self._publish(Batch([(key, None) for key in keys], self.reader.offset))
        if self.reader.offset.sweep:
            self._publish(Batch([], replace(self.reader.offset, sweep=False)))
        self._topic_keys = None
        if gone:
            log.info("keys removed that the table lacks", table=self.name, removed=len(gone))
        return len(gone)

    def _vanished(self, known: set[bytes]) -> tuple[set[bytes], str | None]:
        """The keys that the table lacks, and why they may have to stay."""
        try:
            gone = vanished(known, self.reader)
        except RowError as error:
            return set(), f"the key of a row is not known, and may be one that the table seems to lack: {error}"
        return gone, self._doubt(gone, known)

    def _doubt(self, gone: set[bytes], known: set[bytes]) -> str | None:
        """Why keys that the table lacks may have to stay (guarantee 13), or None."""
        missing = f"{len(gone)} of {len(known)} keys of topic {self.plan.topic!r} are not in table {self.name}"
        if gone and self.others:
            others = ", ".join(self.others)
            return (
                f"{missing} and may be of {others}, which was published there too; give each table a topic of its own,"
                f" or if that has ended, forget its offset: compactory source offsets reset"
            )
        return missing if too_many(gone, known) else None


def key_of(connector: str, database: str, plan: TablePlan) -> bytes:
    """The key of the offset of what is read."""
    return query_key(connector) if plan.query is not None else offset_key(connector, database, plan.schema, plan.name)


def _named(text: str, name_rows: bool) -> str:
    """Why a row was skipped, with or without its id."""
    return text if name_rows else text.partition(": ")[2]


def _slices(keys: list[bytes]) -> Iterator[list[bytes]]:
    return (keys[start : start + PAGE_ROWS] for start in range(0, len(keys), PAGE_ROWS))
