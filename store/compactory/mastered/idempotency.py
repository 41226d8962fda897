"""The first answers to requests with an Idempotency-Key, kept for their repeats."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from compactory.codec.encoding import json_bytes
from compactory.mastered.operation import Operation, Written
from compactory.token import Token

__all__ = ["PREFIX", "Answers"]

Record = tuple[bytes, bytes]

PREFIX = "answer:"  # of the record's key in the topic of answers
_PER_BATCH = 1000  # answers that are forgotten in one transaction at most


class Answers:
    """The answers in the topic of answers, by Idempotency-Key, kept by its only writer.

    Bounded: an answer is forgotten after ``seconds``, and the oldest when there are more than ``most``. Owned by the
    writer's thread.
    """

    def __init__(self, records: Mapping[str, bytes], seconds: float, most: int) -> None:
        self._seconds = seconds
        self._most = most
        found = {key.removeprefix(PREFIX): value for key, value in records.items() if key.startswith(PREFIX)}
        self._answers = found
        ages = sorted((orjson.loads(value)["until"], key) for key, value in found.items())
        self._ends: deque[tuple[float, str]] = deque(ages)

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, operation: Operation) -> Written | None:
        """Return the first answer to an operation. Raises WriteRefused where its key was used for another one."""
        key = operation.idempotency_key
        known = self._answers.get(key) if key is not None else None
        if known is None:
            return None
        answer = orjson.loads(known)
        operation.check_repeat(answer["fingerprint"])
        content = answer["content"]
        return Written(
            status=answer["status"], key=answer["key"], content=None if content is None else orjson.dumps(content),
            token=Token(*answer["token"]), repeated=True,
        )  # fmt: skip

    def record(self, operation: Operation, written: Written) -> Record:
        """Return the record that keeps an answer; `keep` it once it is committed."""
        token = written.token
        answer: dict[str, Any] = {
            "fingerprint": operation.fingerprint(),
            "status": written.status,
            "key": written.key,
            "content": None if written.content is None else orjson.Fragment(written.content),
            "token": [token.topic, token.partition, token.offset, token.topic_id],
            "until": round(time.time() + self._seconds, 3),
        }
        return f"{PREFIX}{operation.idempotency_key}".encode(), json_bytes(answer)

    def keep(self, record: Record) -> None:
        """Keep an answer whose record is committed."""
        key, value = record[0].decode().removeprefix(PREFIX), record[1]
        self._answers[key] = value
        self._ends.append((orjson.loads(value)["until"], key))

    def outdated(self) -> Iterator[tuple[bytes, None]]:
        """Forget what is too old or too much; return the tombstones of its records."""
        now = time.time()
        for _ in range(min(_PER_BATCH, len(self._ends))):
            until, key = self._ends[0]
            if until > now and len(self._answers) <= self._most:
                return
            self._ends.popleft()
            if self._answers.pop(key, None) is not None:
                yield f"{PREFIX}{key}".encode(), None
