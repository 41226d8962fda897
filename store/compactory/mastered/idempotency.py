"""The first answers to requests with an Idempotency-Key, kept for their repeats."""

from __future__ import annotations

import time
from collections import OrderedDict
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
        ages = sorted((orjson.loads(value)["until"], key) for key, value in found.items())
        self._answers = OrderedDict((key, (until, found[key])) for until, key in ages)

    def find(self, operation: Operation) -> Written | None:
        """Return the first answer to an operation. Raises WriteRefused where its key was used for another one."""
        known = self._answers.get(operation.idempotency_key or "")
        if known is None:
            return None
        answer = orjson.loads(known[1])
        operation.check_repeat(answer["fingerprint"])
        content = answer["content"]
        return Written(
            status=answer["status"], key=answer["key"], content=None if content is None else orjson.dumps(content),
            token=Token(*answer["token"]), repeated=True,
        )  # fmt: skip

    def keep(self, operation: Operation, written: Written) -> Record:
        """Keep an answer; return its record, for the transaction of the write. If that fails, this is worth nothing."""
        until = round(time.time() + self._seconds, 3)
        answer: dict[str, Any] = {
            "fingerprint": operation.fingerprint(),
            "status": written.status,
            "key": written.key,
            "content": None if written.content is None else orjson.Fragment(written.content),
            "token": list(written.token),
            "until": until,
        }
        key, value = operation.idempotency_key or "", json_bytes(answer)
        self._answers[key] = until, value
        return f"{PREFIX}{key}".encode(), value

    def outdated(self) -> Iterator[tuple[bytes, None]]:
        """Forget what is too old or too much; return the tombstones of its records."""
        now = time.time()
        for _ in range(min(_PER_BATCH, len(self._answers))):
            key, (until, _) = next(iter(self._answers.items()))
            if until > now and len(self._answers) <= self._most:
                return
            del self._answers[key]
            yield f"{PREFIX}{key}".encode(), None
