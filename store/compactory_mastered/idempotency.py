"""The answers to requests with an Idempotency-Key, remembered for their repeats."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import orjson

from compactory.codec.encoding import json_bytes
from compactory.token import Token
from compactory.write.delivery import Record
from compactory.write.operation import Operation, OperationBatch, Written, WrittenBatch
from compactory_mastered.rules import WriteRules

__all__ = ["ANSWER_PREFIX", "RememberedAnswers"]

ANSWER_PREFIX = "answer:"  # of record keys in the topic of answers
_MAX_EXPIRED = 1000  # expired answers that are forgotten in one transaction


class RememberedAnswers:
    """The records of the topic of answers by Idempotency-Key. Owned by the writer's thread.

    An answer is forgotten after ``remember`` seconds of the rules. Beyond ``remember_at_most`` answers or
    ``remember_bytes`` the oldest are forgotten.
    """

    def __init__(self, records: Mapping[str, bytes], rules: WriteRules) -> None:
        self._rules = rules
        stored = [
            (orjson.loads(value)["until"], key, value)
            for key, value in records.items()
            if key.startswith(ANSWER_PREFIX)
        ]
        self._answers = OrderedDict((key.encode(), (until, value)) for until, key, value in sorted(stored))
        self._bytes = sum(len(record_key) + len(value) for record_key, (_, value) in self._answers.items())

    def find(self, request: Operation | OperationBatch) -> Written | WrittenBatch | None:
        """Return the first answer to a request. Raises WriteRefused if its key was used for another request."""
        stored = self._answers.get(_record_key(request))
        if stored is None:
            return None
        answer = orjson.loads(stored[1])
        request.check_repeat(answer["fingerprint"])
        if isinstance(request, OperationBatch):
            return _repeated_batch(request, answer)
        content = answer["content"]
        return Written(
            status=answer["status"],
            key=answer["key"] if request.key is None else request.key,
            content=None if content is None else orjson.dumps(content),
            token=Token(*answer["token"]),
            repeated=True,
        )

    def remember(self, request: Operation | OperationBatch, written: Written | WrittenBatch) -> Record:
        """Remember an answer; return its record, which the transaction of the write must contain.

        The record has a few hundred bytes beside the content. Keys of operations are not in it: a repeat has them too.
        If the transaction fails, this object must not be used any more.
        """
        until = round(time.time() + self._rules.remember, 3)
        answer: dict[str, Any] = {"fingerprint": request.fingerprint(), "until": until}
        if isinstance(written, WrittenBatch):
            answer |= _batch_fields(request, written)
        else:
            answer |= {
                "status": written.status,
                "key": written.key if request.key is None else None,
                "content": None if written.content is None else orjson.Fragment(written.content),
                "token": list(written.token),
            }
        record_key, value = _record_key(request), json_bytes(answer)
        self._answers[record_key] = until, value
        self._bytes += len(record_key) + len(value)
        return record_key, value

    def forget_expired(self) -> list[Record]:
        """Forget the answers that are too old or too many; return the tombstones of their records."""
        started = time.time()
        tombstones = list[Record]()
        while self._answers:
            record_key, (until, value) = next(iter(self._answers.items()))
            if not self._is_full() and (until > started or len(tombstones) >= _MAX_EXPIRED):
                break
            del self._answers[record_key]
            self._bytes -= len(record_key) + len(value)
            tombstones.append((record_key, None))
        return tombstones

    def _is_full(self) -> bool:
        return len(self._answers) > self._rules.remember_at_most or self._bytes > self._rules.remember_bytes


def _record_key(request: Operation | OperationBatch) -> bytes:
    return f"{ANSWER_PREFIX}{request.idempotency_key}".encode()


def _batch_fields(request: Operation | OperationBatch, written: WrittenBatch) -> dict[str, Any]:
    """Return the fields of a remembered answer to a batch: some 30 bytes for each operation."""
    assert isinstance(request, OperationBatch)
    token = written.results[0].token
    results = [
        (result.status, result.key if operation.key is None else None, result.token.partition, result.token.offset)
        for operation, result in zip(request.operations, written.results, strict=True)
    ]
    return {"topic": token.topic, "topic_id": token.topic_id, "results": results}


def _repeated_batch(batch: OperationBatch, answer: Mapping[str, Any]) -> WrittenBatch:
    results = [
        Written(
            status=status,
            key=key if operation.key is None else operation.key,
            content=None,
            token=Token(answer["topic"], partition, offset, answer["topic_id"]),
            repeated=True,
        )
        for operation, (status, key, partition, offset) in zip(batch.operations, answer["results"], strict=True)
    ]
    return WrittenBatch(results=results, cursor=batch.cursor.next if batch.cursor else None, repeated=True)
