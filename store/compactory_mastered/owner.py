"""The owner of a directory: checks operations against the end of the log and commits their records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import orjson

from compactory.codec.encoding import json_bytes
from compactory.errors import BatchRefused, CompactoryError, CursorConflict, WriteRefused
from compactory.token import Token
from compactory.write.delivery import Record
from compactory.write.operation import Operation, OperationBatch, WriterCursor, Written, WrittenBatch
from compactory_mastered.checking import Checker
from compactory_mastered.current_state import AcceptedWrite, CurrentEntry, CurrentState
from compactory_mastered.fenced_producer import FencedProducer
from compactory_mastered.idempotency import ANSWER_PREFIX, RememberedAnswers
from compactory_mastered.rules import WriteRules

__all__ = ["CURSOR_PREFIX", "OWNER", "Owner", "PendingOperations", "answers_topic_of", "is_answers_key"]

OWNER = "owner"
"""Key of the record in the topic of answers that has the owner's address."""

CURSOR_PREFIX = "cursor:"
"""Of keys in the topic of answers: the record has a writer's cursor of this name, as ``{"cursor": TEXT}``."""


def answers_topic_of(topic: str) -> str:
    """Return the name of the topic of answers beside a mastered directory's topic."""
    return f"{topic}-writes"


def is_answers_key(key: str) -> bool:
    """Return True if a record of the topic of answers may have this key."""
    return key == OWNER or key.startswith((ANSWER_PREFIX, CURSOR_PREFIX))


@dataclass(slots=True, eq=False)
class AcceptedBatch:
    """The writes of an accepted batch, in the order of its operations."""

    operation: OperationBatch
    writes: Sequence[AcceptedWrite]


Decision = AcceptedWrite | AcceptedBatch | Written | WrittenBatch | CompactoryError
"""Writes of this transaction, the answer to an earlier request, or a refusal."""


@dataclass(slots=True, eq=False)
class PendingOperations:
    """Operations of one caller that wait for the owner, the future of their results, and a decision for each."""

    operations: Sequence[Operation | OperationBatch]
    operation_count: int
    future: Future[list[Any]] = field(default_factory=Future)
    decisions: Sequence[Decision] = ()


@dataclass(slots=True, eq=False, kw_only=True)
class Owner:
    """The state of a process that owns a directory. Only the writer's thread uses it. After an error it is discarded.

    ``topic``          has the entries
    ``answers_topic``  has the remembered answers, the cursors of writers and the owner's announcement
    ``url``            is announced to other processes with the first transaction
    ``cursors``        texts of the writers' cursors by name
    ``last_tokens``    the last record of each partition in the last transaction
    """

    topic: str
    answers_topic: str
    url: str | None
    rules: WriteRules
    checker: Checker
    producer: FencedProducer
    state: CurrentState
    answers: RememberedAnswers
    cursors: dict[str, str]
    last_tokens: Sequence[Token] = ()
    _is_announced: bool = False
    _writes: list[AcceptedWrite] = field(default_factory=list)  # of this transaction
    _keyed_writes: dict[str, AcceptedWrite | AcceptedBatch] = field(default_factory=dict)  # by Idempotency-Key
    _changed_cursors: set[str] = field(default_factory=set)  # names, of this transaction

    def decide(self, batch: Iterable[PendingOperations]) -> None:
        """Decide operations in their order, each as if all accepted ones before it had been written."""
        for pending in batch:
            pending.decisions = [*map(self._decide, pending.operations)]

    def commit(self, batch: list[PendingOperations], next_pending: Callable[[], Sequence[PendingOperations]]) -> None:
        """Write a decided batch in one transaction, with the answers to remember and the owner's address.

        What ``next_pending`` returns before Kafka has the first entry joins the batch. Raises as `FencedProducer`.
        """
        if all(isinstance(decision, Written | WrittenBatch) for pending in batch for decision in pending.decisions):
            return

        def joining_records() -> list[Record]:
            count, joining = len(self._writes), next_pending()
            batch.extend(joining)
            self.decide(joining)
            return _records(self._writes[count:])

        with self.producer.transaction():
            origins = self.producer.send(self.topic, _records(self._writes), joining_records)
            writes, self._writes = self._writes, []
            keyed_writes, self._keyed_writes = self._keyed_writes.values(), {}
            for write, (partition, offset) in zip(writes, origins, strict=True):
                write.partition, write.offset = partition, offset
            records = [*map(self._answer_record, keyed_writes)]
            records += self.answers.forget_expired()
            changed_cursors, self._changed_cursors = self._changed_cursors, set()
            for name in changed_cursors:
                records.append((f"{CURSOR_PREFIX}{name}".encode(), json_bytes({"cursor": self.cursors[name]})))
            if not self._is_announced or not writes:  # refusals need a record too: it proves that this is the owner
                records.append((OWNER.encode(), orjson.dumps({"url": self.url})))
            if records:
                self.producer.send(self.answers_topic, records)
        self._is_announced = True
        self.last_tokens = [Token(self.topic, partition, offset) for partition, offset in dict(origins).items()]

    def results(self, pending: PendingOperations) -> list[Written | WrittenBatch | CompactoryError]:
        """Return the results of operations whose transaction is committed."""
        return [*map(self._result, pending.operations, pending.decisions)]

    def _decide(self, operation: Operation | OperationBatch) -> Decision:
        key = operation.idempotency_key
        try:
            operation.check_idempotency_key()
            earlier = self._earlier(key, operation) if key is not None else None
            if earlier is not None:
                return earlier
            accepted: AcceptedWrite | AcceptedBatch
            if isinstance(operation, OperationBatch):
                accepted = self._accept_batch(operation)
            else:
                accepted = self.checker.check(operation, self.state)
                if accepted.existing is None:
                    self.state.add(accepted)
                    self._writes.append(accepted)
        except CompactoryError as error:
            return error
        if key is not None:
            self._keyed_writes[key] = accepted
        return accepted

    def _accept_batch(self, batch: OperationBatch) -> AcceptedBatch:
        """Check the operations of a batch in their order, and add all their writes to the transaction, or none.

        Raises WriteRefused, CursorConflict, BatchRefused.
        """
        batch.check()
        cursor = batch.cursor
        if cursor is not None:
            self._check_cursor(cursor)
        writes, previous_entries = list[AcceptedWrite](), list[CurrentEntry | None]()
        try:
            for write in self._checked_writes(batch):
                writes.append(write)
                previous_entries.append(self.state.add(write) if write.existing is None else None)
        except BatchRefused:
            for write, previous in zip(reversed(writes), reversed(previous_entries), strict=True):
                if write.existing is None:
                    self.state.remove(write, previous)
            raise
        self._writes += [write for write in writes if write.existing is None]
        if cursor is not None:
            self.cursors[cursor.name] = cursor.next
            self._changed_cursors.add(cursor.name)
        return AcceptedBatch(batch, writes)

    def _checked_writes(self, batch: OperationBatch) -> Iterator[AcceptedWrite]:
        """Yield the write of each operation. The caller adds it to the state before it asks for the next one."""
        indexes = dict[str, int]()  # of operations, by key
        for index, operation in enumerate(batch.operations):
            try:
                key = self.checker.key_of(operation)
                if key in indexes:
                    raise WriteRefused(f"operation {indexes[key]} has the same key: send them in two batches")
                indexes[key] = index
                write = self.checker.check(operation, self.state)
            except CompactoryError as error:
                raise BatchRefused(index, operation.key, error) from error
            yield write

    def _check_cursor(self, cursor: WriterCursor) -> None:
        stored = self.cursors.get(cursor.name)
        if stored != cursor.expected:
            raise CursorConflict(
                f"cursor {cursor.name!r} is not the expected one: go on from the stored one, or read it again", stored
            )

    def _earlier(self, key: str, operation: Operation | OperationBatch) -> Decision | None:
        """Return what the first request with this Idempotency-Key wrote. Raises WriteRefused if it was different."""
        accepted = self._keyed_writes.get(key)
        if accepted is None:
            return self.answers.find(operation)
        operation.check_repeat(accepted.operation.fingerprint())
        return accepted

    def _result(
        self, operation: Operation | OperationBatch, decision: Decision
    ) -> Written | WrittenBatch | CompactoryError:
        if isinstance(decision, AcceptedWrite):
            return self._written(decision, repeated=decision.operation is not operation)
        if isinstance(decision, AcceptedBatch):
            return self._written_batch(decision, repeated=decision.operation is not operation)
        return decision

    def _answer_record(self, accepted: AcceptedWrite | AcceptedBatch) -> Record:
        written: Written | WrittenBatch
        written = self._written_batch(accepted) if isinstance(accepted, AcceptedBatch) else self._written(accepted)
        return self.answers.remember(accepted.operation, written)

    def _written_batch(self, accepted: AcceptedBatch, *, repeated: bool = False) -> WrittenBatch:
        results = [self._written(write, repeated=repeated, has_content=False) for write in accepted.writes]
        cursor = accepted.operation.cursor
        return WrittenBatch(results=results, cursor=cursor.next if cursor else None, repeated=repeated)

    def _written(self, write: AcceptedWrite, *, repeated: bool = False, has_content: bool = True) -> Written:
        content = write.data if has_content else None
        if content is not None and self.rules.internal:
            content = orjson.dumps(self.rules.shown(write.document))
        record = write.existing or write
        token = Token(self.topic, record.partition, record.offset, self.state.topic_id)
        repeated = repeated or write.existing is not None
        return Written(status=write.status, key=write.key, content=content, token=token, repeated=repeated)


def _records(writes: Sequence[AcceptedWrite]) -> list[Record]:
    return [(write.record_key, write.data) for write in writes]
