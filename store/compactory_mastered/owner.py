"""The owner of a directory: checks operations against the end of the log and commits their records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import orjson

from compactory.errors import CompactoryError
from compactory.token import Token
from compactory.write.delivery import Record
from compactory.write.operation import Operation, Written
from compactory_mastered.checking import Checker
from compactory_mastered.current_state import AcceptedWrite, CurrentState
from compactory_mastered.fenced_producer import FencedProducer
from compactory_mastered.idempotency import RememberedAnswers
from compactory_mastered.rules import WriteRules

__all__ = ["OWNER", "Owner", "PendingOperations"]

OWNER = "owner"
"""Key of the record in the topic of answers that has the owner's address."""


Decision = AcceptedWrite | Written | CompactoryError
"""A write of this transaction, the answer to an earlier operation, or a refusal."""


@dataclass(slots=True, eq=False)
class PendingOperations:
    """Operations of one caller that wait for the owner, the future of their results, and a decision for each."""

    operations: Sequence[Operation]
    future: Future[list[Written | CompactoryError]] = field(default_factory=Future)
    decisions: Sequence[Decision] = ()


@dataclass(slots=True, eq=False, kw_only=True)
class Owner:
    """The state of a process that owns a directory. Only the writer's thread uses it. After an error it is discarded.

    ``topic``          has the entries
    ``answers_topic``  has the remembered answers and the owner's announcement
    ``url``            is announced to other processes with the first transaction
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
    last_tokens: Sequence[Token] = ()
    _is_announced: bool = False
    _writes: list[AcceptedWrite] = field(default_factory=list)  # of this transaction
    _keyed_writes: dict[str, AcceptedWrite] = field(default_factory=dict)  # of this transaction, by Idempotency-Key

    def decide(self, batch: Iterable[PendingOperations]) -> None:
        """Decide operations in their order, each as if all accepted ones before it had been written."""
        for pending in batch:
            pending.decisions = [*map(self._decide, pending.operations)]

    def commit(self, batch: list[PendingOperations], next_pending: Callable[[], Sequence[PendingOperations]]) -> None:
        """Write a decided batch in one transaction, with the answers to remember and the owner's address.

        What ``next_pending`` returns before Kafka has the first entry joins the batch. Raises as `FencedProducer`.
        """
        if all(isinstance(decision, Written) for pending in batch for decision in pending.decisions):
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
            records = [self.answers.remember(write.operation, self._written(write)) for write in keyed_writes]
            records += self.answers.forget_expired()
            if not self._is_announced or not writes:  # refusals need a record too: it proves that this is the owner
                records.append((OWNER.encode(), orjson.dumps({"url": self.url})))
            if records:
                self.producer.send(self.answers_topic, records)
        self._is_announced = True
        self.last_tokens = [Token(self.topic, partition, offset) for partition, offset in dict(origins).items()]

    def results(self, pending: PendingOperations) -> list[Written | CompactoryError]:
        """Return the results of operations whose transaction is committed."""
        return [*map(self._result, pending.operations, pending.decisions)]

    def _decide(self, operation: Operation) -> Decision:
        key = operation.idempotency_key
        try:
            operation.check_idempotency_key()
            earlier = self._earlier(key, operation) if key is not None else None
            if earlier is not None:
                return earlier
            write = self.checker.check(operation, self.state)
        except CompactoryError as error:
            return error
        if write.existing is None:
            self.state.add(write)
            self._writes.append(write)
        if key is not None:
            self._keyed_writes[key] = write
        return write

    def _earlier(self, key: str, operation: Operation) -> AcceptedWrite | Written | None:
        """Return what the first operation with this Idempotency-Key wrote. Raises WriteRefused if it was different."""
        write = self._keyed_writes.get(key)
        if write is None:
            return self.answers.find(operation)
        operation.check_repeat(write.operation.fingerprint())
        return write

    def _result(self, operation: Operation, decision: Decision) -> Written | CompactoryError:
        if not isinstance(decision, AcceptedWrite):
            return decision
        is_repeat = decision.existing is not None or decision.operation is not operation
        return self._written(decision, repeated=is_repeat)

    def _written(self, write: AcceptedWrite, *, repeated: bool = False) -> Written:
        content = write.data
        if content is not None and self.rules.internal:
            content = orjson.dumps(self.rules.shown(write.document))
        record = write.existing or write
        token = Token(self.topic, record.partition, record.offset, self.state.topic_id)
        return Written(status=write.status, key=write.key, content=content, token=token, repeated=repeated)


def _records(writes: Sequence[AcceptedWrite]) -> list[Record]:
    return [(write.record_key, write.data) for write in writes]
