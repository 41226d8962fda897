"""The operations of one transaction: what each wants, what was decided, how its answer is made."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

from compactory.errors import CompactoryError, WriteFailed
from compactory.mastered.current_state import CurrentState, Held
from compactory.mastered.fenced_producer import FencedProducer
from compactory.mastered.idempotency import Answers
from compactory.mastered.operation import Operation, Written
from compactory.token import Token

__all__ = ["Decision", "Item", "Ownership", "Write", "failure"]


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """Operations that wait, and the future of their results."""

    operations: Sequence[Operation]
    take_over: bool
    future: Future[list[Written | CompactoryError]] = field(default_factory=Future)


@dataclass(slots=True, eq=False, kw_only=True)
class Write(Held):
    """The record of an operation that is allowed. ``name`` is its key, ``there`` an earlier record that it repeats."""

    operation: Operation
    key: str
    name: bytes
    status: Literal["created", "replaced", "deleted"]
    there: Held | None = None


Decision = Write | Written | CompactoryError
"""A write of this transaction, the answer of an earlier one, or the refusal."""


@dataclass(slots=True, eq=False)
class Ownership:
    """The resources of a process that owns a directory. Dropped whole after any error."""

    producer: FencedProducer
    state: CurrentState
    answers: Answers
    announced: bool = False  # whether others can read who the owner is
    last: Sequence[Token] = ()  # of the last transaction: its last record of each partition
    writes: list[Write] = field(default_factory=list)  # records of this transaction
    keyed: dict[str, Write] = field(default_factory=dict)  # and what was decided in it, by Idempotency-Key

    def first(self, operation: Operation) -> Write | Written | None:
        """Return what the operation is a repeat of, None if it is a first one. Raises WriteRefused for another one."""
        if operation.idempotency_key is None:
            return None
        under_way = self.keyed.get(operation.idempotency_key)
        if under_way is None:
            return self.answers.find(operation)
        operation.check_repeat(under_way.operation.fingerprint())
        return under_way


def failure(topic: str, key: str | None, error: Exception, *, unknown: bool) -> WriteFailed:
    """Return the error of an operation on a key whose transaction failed."""
    told = "nothing was written"
    if unknown:
        told = "whether it was written is not known; the same request with an Idempotency-Key tells"
    cause = error if isinstance(error, CompactoryError) else None
    message = f"the write to topic {topic!r} failed: {error if cause else type(error).__name__}; {told}"
    return WriteFailed.of_key(message, topic=topic, key=key, unknown=unknown, cause=cause)
