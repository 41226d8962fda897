"""The operations of one transaction: what each wants, what was decided, how its answer is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Literal

from compactory.errors import CompactoryError, WriteFailed, WriteRefused
from compactory.mastered.current_state import CurrentState, Held
from compactory.mastered.fenced_producer import FencedProducer
from compactory.mastered.idempotency import Answers
from compactory.mastered.operation import Operation, Written

__all__ = ["Decision", "Item", "Ownership", "Repeat", "Write", "failure"]


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """Operations that wait, and the future of their results."""

    operations: Sequence[Operation]
    take_over: bool
    future: Future[list[Written | CompactoryError]] = field(default_factory=Future)


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """An operation that is allowed. ``name`` is the record's key; None where the record is there already."""

    operation: Operation
    key: str
    status: Literal["created", "replaced", "deleted"]
    held: Held
    name: bytes | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """The repeat of an operation: its first answer, or the write of the same transaction that makes it."""

    first: Written | Write

    def written(self, answer: Callable[[Write], Written]) -> Written:
        """Return the first answer."""
        first = self.first if isinstance(self.first, Written) else answer(self.first)
        return replace(first, repeated=True)


Decision = Write | Repeat | CompactoryError


@dataclass(slots=True, eq=False)
class Ownership:
    """What a process has while it owns a directory. Dropped whole after any error."""

    producer: FencedProducer
    state: CurrentState
    answers: Answers
    topic_id: str | None
    announced: bool = False  # whether others can read who the owner is
    keyed: dict[str, Write] = field(default_factory=dict)  # writes of this transaction by Idempotency-Key

    def repeated(self, operation: Operation) -> Repeat | None:
        """Return the repeat that an operation is, None for a first one. Raises WriteRefused for a key used twice."""
        under_way = self.keyed.get(operation.idempotency_key or "")
        if under_way is None:
            first = self.answers.find(operation)
            return None if first is None else Repeat(first)
        if under_way.operation.fingerprint() != operation.fingerprint():
            raise WriteRefused("the Idempotency-Key was used for another request; choose a new one for each")
        return Repeat(under_way)


def failure(topic: str, operation: Operation, error: Exception, *, unknown: bool) -> WriteFailed:
    """Return the error of an operation whose transaction failed."""
    key = (operation.key or "",)
    if unknown:
        told = "whether it was written is not known; the same request with its Idempotency-Key tells"
    else:
        told = "nothing was written"
    cause = error if isinstance(error, CompactoryError) else None
    failed = WriteFailed(
        f"the write to topic {topic!r} failed: {error if cause else type(error).__name__}; {told}",
        topic=topic, not_written=() if unknown else key, unknown=key if unknown else (), cause=cause,
    )  # fmt: skip
    failed.retryable = True
    return failed
