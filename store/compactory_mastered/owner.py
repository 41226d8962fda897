"""The owner of a directory: it decides operations against the end of the log, and commits them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import orjson

from compactory.errors import CompactoryError
from compactory.token import Token
from compactory.write.delivery import Record
from compactory_mastered.checking import Checker
from compactory_mastered.current_state import CurrentState, Write
from compactory_mastered.fenced_producer import FencedProducer
from compactory_mastered.idempotency import Answers
from compactory_mastered.operation import Operation, Written
from compactory_mastered.rules import WriteRules

__all__ = ["OWNER", "Item", "Owner"]

OWNER = "owner"
"""Key of the record in the topic of answers that names the owner's address."""


Decision = Write | Written | CompactoryError
"""A write of this transaction, the answer of an earlier one, or the refusal."""


@dataclass(slots=True, eq=False)
class Item:
    """Operations that wait, the future of their results, and what was decided of each."""

    operations: Sequence[Operation]
    future: Future[list[Written | CompactoryError]] = field(default_factory=Future)
    decided: Sequence[Decision] = ()


@dataclass(slots=True, eq=False, kw_only=True)
class Owner:
    """The state of a process that owns a directory. Only the writer's thread uses it; any error ends it.

    ``topic`` and ``answers_topic`` are what it writes; ``url`` is announced to others with the first transaction.
    """

    topic: str
    answers_topic: str
    url: str | None
    rules: WriteRules
    checker: Checker
    producer: FencedProducer
    state: CurrentState
    answers: Answers
    last: Sequence[Token] = ()  # of the last transaction: its last record of each partition
    _announced: bool = False
    _writes: list[Write] = field(default_factory=list)  # records of this transaction
    _keyed: dict[str, Write] = field(default_factory=dict)  # and what was decided in it, by Idempotency-Key

    def decide(self, items: Iterable[Item]) -> None:
        """Decide operations, in their order, as if all before had been written."""
        for item in items:
            item.decided = [*map(self._decision, item.operations)]

    def commit(self, batch: list[Item], more: Callable[[], Sequence[Item]]) -> None:
        """Write in one transaction what was decided, the answers to keep, and who the owner is.

        What ``more`` returns before Kafka has the first entry joins the batch. Raises what `FencedProducer` raises.
        """
        if all(isinstance(decision, Written) for item in batch for decision in item.decided):
            return

        def joining() -> list[Record]:
            sent, items = len(self._writes), more()
            batch.extend(items)
            self.decide(items)
            return _records(self._writes[sent:])

        with self.producer.transaction():
            places = self.producer.send(self.topic, _records(self._writes), joining)
            writes, self._writes = self._writes, []
            keyed, self._keyed = self._keyed.values(), {}
            for write, place in zip(writes, places, strict=True):
                write.partition, write.offset = place
            kept = [self.answers.keep(write.operation, self._written(write)) for write in keyed]
            notes: list[Record] = [*kept, *self.answers.outdated()]
            if not self._announced or not writes:  # a refusal, too, must know that nobody has taken over
                notes.append((OWNER.encode(), orjson.dumps({"url": self.url})))
            if notes:
                self.producer.send(self.answers_topic, notes)
        self._announced = True
        self.last = [Token(self.topic, *place) for place in dict(places).items()]

    def results(self, item: Item) -> list[Written | CompactoryError]:
        """Return the answers to operations whose transaction is committed."""
        return [*map(self._result, item.operations, item.decided)]

    def _decision(self, operation: Operation) -> Decision:
        key = operation.idempotency_key
        try:
            operation.check_idempotency_key()
            first = self._first(key, operation) if key is not None else None
            if first is not None:
                return first
            write = self.checker.write(operation, self.state)
        except CompactoryError as error:
            return error
        if write.there is None:
            self.state.write(write)
            self._writes.append(write)
        if key is not None:
            self._keyed[key] = write
        return write

    def _first(self, key: str, operation: Operation) -> Write | Written | None:
        """Return what the operation is a repeat of, None if it is a first one. Raises WriteRefused for another one."""
        under_way = self._keyed.get(key)
        if under_way is None:
            return self.answers.find(operation)
        operation.check_repeat(under_way.operation.fingerprint())
        return under_way

    def _result(self, operation: Operation, decision: Decision) -> Written | CompactoryError:
        if not isinstance(decision, Write):
            return decision
        return self._written(decision, repeated=decision.there is not None or decision.operation is not operation)

    def _written(self, write: Write, *, repeated: bool = False) -> Written:
        content = write.data
        if content is not None and self.rules.internal:
            content = orjson.dumps(self.rules.shown(write.document))
        record = write.there or write
        token = Token(self.topic, record.partition, record.offset, self.state.topic_id)
        return Written(status=write.status, key=write.key, content=content, token=token, repeated=repeated)


def _records(writes: Sequence[Write]) -> list[Record]:
    return [(write.name, write.data) for write in writes]
