"""One connected life of a connector: from the offsets it found to the first failure of Postgres or Kafka.

Owned by one thread. A failure ends the session; whoever runs it opens another one, which reads the offsets again, so
nothing that was in flight needs to be remembered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Self

import structlog

from compactory.errors import CompactoryError
from compactory.kafka import Kafka

from .comparison import Comparison
from .connector import ConnectorConfig
from .horizon import Snapshot
from .offset import SourceOffset, offset_key, sharing
from .planning import plan_tables
from .publisher import Publisher
from .record import RowError
from .server import Server, postgres_errors
from .status import StatusBoard
from .sweep import too_many, vanished
from .table import PAGE_ROWS, Batch, TableReader
from .table_plan import TablePlan
from .topics import OFFSETS_TOPIC, ensure, living_keys, stored_values

__all__ = ["TOPICS_EVERY", "Session", "TopicReplaced"]

log = structlog.get_logger("compactory.source")

TOPICS_EVERY = 5.0
"""Seconds between two looks whether a topic was deleted and created again."""

_SLICE = 0.25  # seconds; how long a wait may take to notice that the source should stop
_SEEN_LIMIT = 100_000


class TopicReplaced(CompactoryError):
    """A topic that the source publishes to is another one now; a new session looks again."""

    retryable = True


class Session:
    """Polls the connector's tables and publishes what it finds. See :class:`Source` for the errors it raises."""

    def __init__(
        self, connector: ConnectorConfig, kafka: Kafka, server: Server, publisher: Publisher, board: StatusBoard
    ) -> None:
        self._connector = connector
        self._kafka = kafka
        self._server = server
        self._publisher = publisher
        self._board = board
        self._interval = connector.poll_interval_ms / 1000
        self._readers: list[TableReader] = []
        self._due: dict[int, float] = {}
        self._topic_keys: dict[int, set[bytes]] = {}
        self._held: set[int] = set()
        self._others: dict[int, list[str]] = {}
        self._topic_ids: dict[str, str | None] = {}
        self._look_at_topics = 0.0
        self._blocked = 0.0
        self._current: Snapshot | None = None

    @classmethod
    def open(cls, connector: ConnectorConfig, kafka: Kafka, board: StatusBoard, *, create_topics: bool) -> Self:
        """Connect to both sides, check tables and topics, fence earlier holders, read the offsets.

        Nothing is written before everything has been checked. Raises ConfigError, Unreachable, LeaseLost.
        """
        with postgres_errors(connector.connection):
            server = Server.open(connector.connection.conninfo)
        try:
            with postgres_errors(connector.connection):
                server.announce(connector.name)
                plans = plan_tables(server, connector)
            creation = connector.topic_creation
            sizes = {plan.topic: (creation.partitions, creation.replication_factor) for plan in plans}
            warnings = ensure(kafka, sizes, configs=creation.configs, create=create_topics)
            board.warn(*warnings, *(warning for plan in plans for warning in plan.warnings))
            publisher = Publisher(
                kafka,
                connector.name,
                OFFSETS_TOPIC,
                transactions=connector.transactions,
                overrides=connector.producer,
            )
            try:
                publisher.open()
                session = cls(connector, kafka, server, publisher, board)
                session._restore(plans)
            except BaseException:
                publisher.close()
                raise
        except BaseException:
            server.close()
            raise
        return session

    def close(self) -> None:
        """Let go of both sides; what was not acknowledged is sent again by the next session."""
        self._publisher.close()
        self._server.close()

    def round(self, stop: threading.Event, *, woken: bool = False) -> bool:
        """Poll every table that is due, or with ``woken`` those that notify; whether anything was published.

        ``stop`` is heard between the pages of a poll: the next session goes on there.
        """
        self._check_topics()
        with postgres_errors(self._connector.connection):
            current = self._current or self._server.peek()
            self._current = None
            published = False
            now, looked_at = time.monotonic(), time.time()
            for number, reader in enumerate(self._readers):
                if not (woken and reader.plan.notifies) and now < self._due[number]:
                    continue
                self._due[number] = now + self._interval
                if not reader.is_idle(current):
                    if self._floor_held(reader, current):
                        continue
                    published |= self._drain(number, reader, stop)
                self._board.current(reader.plan.qualified, looked_at)
            return published

    def rest(self, stop: threading.Event) -> bool:
        """Wait until a writer notifies, a table is due or ``stop`` is set; whether a writer did."""
        oids = [reader.plan.oid for reader in self._readers if reader.plan.notifies]
        until = min(*self._due.values(), self._look_at_topics)
        if not oids:
            stop.wait(max(0.0, until - time.monotonic()))
            return False
        with postgres_errors(self._connector.connection):
            try:
                self._current = self._server.sleep(oids)
                if self._current is None:
                    # A writer that saw the source awake has not committed: it will not notify, so look again soon.
                    self._blocked = min(_SLICE, self._blocked * 2 or 0.002)
                    stop.wait(self._blocked)
                    return True
                self._blocked = 0.0
                return self.round(stop, woken=True) or self._notified(until, stop)
            finally:
                if not self._server.connection.closed:
                    self._current = self._server.wake()

    def _notified(self, until: float, stop: threading.Event) -> bool:
        while not stop.is_set():
            left = until - time.monotonic()
            if left <= 0:
                return False
            if self._server.wait(min(left, _SLICE)):
                return True
        return False

    def _restore(self, plans: Iterable[TablePlan]) -> None:
        plans = list(plans)
        keys = {self._key(plan): plan for plan in plans}
        values = stored_values(self._kafka)
        topics = self._kafka.topics({plan.topic for plan in plans})
        for number, (key, plan) in enumerate(keys.items()):
            topic = (plan.topic, topics[plan.topic].topic_id)
            self._topic_ids[plan.topic] = topic[1]
            offset = self._offset(values.get(key), plan)
            if offset is not None and offset.topic is None:  # set by hand, for whatever topic it is
                offset = replace(offset, topic=topic)
            if offset is not None and offset.topic != topic:
                log.warning("another topic than before: the table is loaded afresh", table=plan.qualified, topic=topic)
                offset = None
            self._others[number] = sharing(plan.topic, key, values)
            reader = TableReader(self._server, plan, offset, topic)
            self._readers.append(reader)
            self._due[number] = 0.0
            self._board.table(plan.qualified, plan.topic, adopted=plan.adopted)
            log.info("table", table=plan.qualified, topic=plan.topic, adopted=plan.adopted, resumed=offset is not None)
        if any(plan.notifies for plan in plans):
            with postgres_errors(self._connector.connection):
                self._server.listen()

    def _check_topics(self) -> None:
        """Look now and then whether the topics are still those that the offsets are about."""
        if time.monotonic() < self._look_at_topics:
            return
        self._look_at_topics = time.monotonic() + TOPICS_EVERY
        found = self._kafka.topics(self._topic_ids)
        for name, topic_id in self._topic_ids.items():
            if name not in found or found[name].topic_id != topic_id:
                raise TopicReplaced(
                    f"topic {name!r} was deleted, or deleted and created again, since this session began"
                )

    def _offset(self, value: bytes | None, plan: TablePlan) -> SourceOffset | None:
        if value is None:
            return None
        try:
            return SourceOffset.loads(value)
        except ValueError as error:
            raise CompactoryError(
                f"the offset of {plan.qualified} in topic {OFFSETS_TOPIC!r} can't be read ({error}); it was written by"
                " something else or a newer version; reset it by a tombstone for its key to load the table afresh"
            ) from error

    def _key(self, plan: TablePlan) -> bytes:
        return offset_key(self._connector.name, self._server.database, plan.schema, plan.name)

    def _drain(self, number: int, reader: TableReader, stop: threading.Event) -> bool:
        """Publish everything one poll finds, or its pages before ``stop`` is set."""
        sent = 0
        before = reader.offset
        if before.compare and reader.comparison is None:
            reader.comparison = Comparison.of(self._kafka, reader.plan.topic)
            self._topic_keys[number] = reader.comparison.living()
        for batch in self._batches(reader):
            if number not in self._topic_keys and batch.offset.sweep:
                # Before anything of ours is in it; nobody else writes it any more.
                self._topic_keys[number] = living_keys(self._kafka, reader.plan.topic)
            self._publish(reader, batch)
            sent += len(batch.records)
            if stop.is_set():
                return True
        if before.horizon is not None and reader.offset.sweep and not before.sweep:
            log.warning("another server or history: every row was sent again", table=reader.plan.qualified)
        if reader.offset.sweep and number not in self._held:
            sent += self._sweep(number, reader)
        self._board.polled(reader.plan.qualified, sent)
        return sent > 0

    def _batches(self, reader: TableReader) -> Iterator[Batch]:
        """The pages of one poll; a value that can't be converted is named with its table."""
        try:
            yield from reader.pages(min(PAGE_ROWS, self._connector.batch_max_rows))
        except RowError as error:
            raise CompactoryError(f"table {reader.plan.qualified}: {error}") from error

    def _floor_held(self, reader: TableReader, current: Snapshot) -> bool:
        """Whether an open transaction has made the list of seen row versions too long to go on."""
        horizon = reader.offset.horizon
        if horizon is None or horizon.seen is None or len(horizon.seen) < _SEEN_LIMIT:
            return False
        if current.xmin > horizon.snapshot.xmin:
            self._board.held(reader.plan.qualified, None)
            return False
        holders = self._server.holders(current.xmin)
        detail = f"an open transaction holds the snapshot's floor back: {'; '.join(holders) or 'of another database'}"
        log.error("table waits", table=reader.plan.qualified, detail=detail)
        self._board.held(reader.plan.qualified, detail)
        return True

    def _publish(self, reader: TableReader, batch: Batch) -> None:
        if batch.persist:
            self._publisher.publish(reader.plan.topic, batch.records, (self._key(reader.plan), batch.offset.dumps()))
        reader.acknowledge(batch)

    def _sweep(self, number: int, reader: TableReader) -> int:
        """Remove keys from the topic that the table lacks, unless they may be another's or are suspiciously many."""
        known = self._topic_keys.get(number, set())
        gone = vanished(known, reader)
        name = reader.plan.qualified
        detail = self._doubt(number, reader.plan, gone, known)
        if detail is not None:
            log.error("removal held", table=name, removed=len(gone), keys=len(known), detail=detail)
            self._board.held(name, detail)
            self._held.add(number)
            return 0
        done = replace(reader.offset, sweep=False)
        keys = sorted(gone)
        for start in range(0, len(keys), PAGE_ROWS):
            self._publish(reader, Batch([(key, None) for key in keys[start : start + PAGE_ROWS]], reader.offset))
        self._publish(reader, Batch([], done))
        self._topic_keys.pop(number, None)
        if gone:
            log.info("keys removed that the table lacks", table=name, removed=len(gone))
        return len(gone)

    def _doubt(self, number: int, plan: TablePlan, gone: set[bytes], known: set[bytes]) -> str | None:
        """Why keys that the table lacks may have to stay (guarantee 13), or None."""
        missing = f"{len(gone)} of {len(known)} keys of topic {plan.topic!r} are not in table {plan.qualified}"
        if gone and self._others[number]:
            others = ", ".join(self._others[number])
            return (
                f"{missing} and may be of {others}, which was published there too; give each table a topic of its own,"
                f" or if that has ended, write a tombstone for its key to topic {OFFSETS_TOPIC!r}"
            )
        return missing if too_many(gone, known) else None
