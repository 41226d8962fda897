"""A thread of a relay: takes topics from the keeper and sends them, session after session. Its states:

    CONNECT → RECOVER → TAKE → SERVE → TAKE …    see `session` for SERVE; RECOVER serves the topics that the former
                                                 session has left locked
    any → WAIT → CONNECT                         an outage, or an error of the session

The transactional id of a session is its holder, whose name is in the locks. A sender that takes over a lock that was
not renewed fences that id first, and then deletes what the holder's last committed transaction sent. So a holder that
has lost its lock can't send, and what it sent is not sent again.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from queue import Empty
from uuid import uuid4

import psycopg
import structlog

from compactory.errors import CompactoryError
from compactory_connectors.backoff import Backoff
from compactory_connectors.kafka.publisher import EndInDoubt, Publisher

from .sent_ids import MARKS_TOPIC, SentIds, SentMarks
from .session import SenderMemory, SenderSession, Shared
from .statements import OutboxTable, PendingTopic, open_outbox

__all__ = ["Sender"]

log = structlog.get_logger("compactory.outbox")

_GROUP = 64  # topics in a transaction


@dataclass(slots=True)
class Sender:
    """Owned by the thread that runs it."""

    shared: Shared
    number: int
    _memory: SenderMemory = field(default_factory=SenderMemory)
    _doubtful_holders: set[str] = field(default_factory=set)  # the last transaction of each may be committed in part
    _backoff: Backoff = field(default_factory=Backoff)

    def run(self) -> None:
        """Work until the relay stops. Waits during an outage."""
        while not self.shared.stop.is_set():
            try:
                with self._open_session() as session:
                    self._work(session)
            except EndInDoubt as error:  # the next session has another transactional id
                log.info("a new producer is opened", thread=self.number, reason=str(error))
            except (psycopg.Error, CompactoryError) as error:
                self.shared.board.note(detail=str(error))
                log.warning("the outbox is not sent", thread=self.number, error=" ".join(str(error).split()))
                self.shared.stop.wait(self._backoff.pause())

    @contextmanager
    def _open_session(self) -> Iterator[SenderSession]:
        """Connect under a new holder's name. Topics that are still locked are taken over from the former holder."""
        shared = self.shared
        holder = f"{socket.gethostname()[:24]}-{os.getpid()}-{self.number}-{uuid4().hex[:8]}"
        connection, identity = open_outbox(shared.conninfo, holder)
        with closing(connection), closing(self._producer(holder)) as publisher:
            publisher.open()
            table, marks = OutboxTable(connection, holder), SentMarks(shared.kafka, identity)
            marks.ensure()
            try:
                with shared.board.holding(holder):
                    yield SenderSession(shared, self._memory, holder, table, publisher, marks)
            finally:
                if publisher.was_ended_outside:
                    self._doubtful_holders.add(holder)

    def _work(self, session: SenderSession) -> None:
        self._recover(session)
        while (pending := self.shared.work.get()) is not None and not self.shared.stop.is_set():
            self.shared.busy.add(self.number)
            group = self._with_others(pending)
            self._memory.reserved = {topic.name for topic in group}
            try:
                self._serve(session, group)
            finally:
                self.shared.busy.discard(self.number)
                for topic in [*self._memory.reserved]:
                    session.give_back(topic)

    def _recover(self, session: SenderSession) -> None:
        """Send the topics that the former session has left locked."""
        topics = [*self._memory.to_recover.values()]
        groups = [[topic] for topic in topics] if self._memory.one_by_one else [topics]
        for group in groups:
            if group and not self.shared.stop.is_set():
                self._serve(session, group)
        self._memory.one_by_one = False

    def _with_others(self, first: PendingTopic) -> list[PendingTopic]:
        """Return a topic and a share of the waiting ones, for one transaction. Each idle thread gets an equal share."""
        work = self.shared.work
        idle = self.shared.threads - len(self.shared.busy)
        group = [first]
        for _ in range(0 if first.alone else min(_GROUP - 1, work.qsize() // (idle + 1))):
            try:
                topic = work.get_nowait()
            except Empty:
                break
            if topic is None or topic.alone or topic.lapsed != first.lapsed:
                work.put(topic)
                break
            group.append(topic)
        return group

    def _serve(self, session: SenderSession, group: Sequence[PendingTopic]) -> None:
        """Lock and send topics, all of one lapsed holder or of none, except topics that Kafka still lacks."""
        facts, store_limits = self.shared.facts, session.table.store_size_limits
        group = [topic for topic in group if not topic.missing or facts.exists(topic.name, store_limits)]
        if not group:
            return
        lapsed = group[0].lapsed
        last_sent = self._fence(session, lapsed) if lapsed is not None else {}
        locked = session.claim(group, last_sent)
        self._backoff.reset()
        session.drain(locked)

    def _fence(self, session: SenderSession, holder: str) -> dict[str, SentIds]:
        """Fence a holder that did not renew its lock; return the ids of its last transaction by topic.

        Its Postgres session is ended too: a frozen holder may have locks on rows.
        """
        with closing(self._producer(holder)) as publisher:
            publisher.open()
        session.table.end_session(holder)
        return {} if holder in self._doubtful_holders else session.marks.last(holder)

    def _producer(self, holder: str) -> Publisher:
        # a commit does not wait for the linger time; until then only full batches are sent, few for each topic
        return Publisher(
            self.shared.kafka, f"outbox-{holder}", MARKS_TOPIC, overrides={"linger.ms": 1000}, may_reopen=False
        )
