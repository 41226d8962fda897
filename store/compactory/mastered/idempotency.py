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

__all__ = ["Answers"]

Record = tuple[bytes, bytes]

_PREFIX = "answer:"  # of the record's key in the topic of answers
_PER_BATCH = 1000  # answers that are forgotten in one transaction at most


class Answers:
    """The answers in the topic of answers, by Idempotency-Key, kept by its only writer.

    Bounded: an answer is forgotten after ``seconds``, and the oldest when there are more than ``most``. Owned by the
    writer's thread.
    """

    def __init__(self, records: Mapping[str, bytes], seconds: float, most: int) -> None:
        self._seconds = seconds
        self._most = most
        found = [
            (orjson.loads(value)["until"], key, value) for key, value in records.items() if key.startswith(_PREFIX)
        ]
        self._answers = OrderedDict((key.encode(), (until, value)) for until, key, value in sorted(found))

    def find(self, operation: Operation) -> Written | None:
        """Return the first answer to an operation. Raises WriteRefused where its key was used for another one."""
        known = self._answers.get(_name(operation))
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
        name, value = _name(operation), json_bytes(answer)
        self._answers[name] = until, value
        return name, value

    def outdated(self) -> Iterator[tuple[bytes, None]]:
        """Forget what is too old or too much; return the tombstones of its records."""
        now = time.time()
        for _ in range(min(_PER_BATCH, len(self._answers))):
            name, (until, _) = next(iter(self._answers.items()))
            if until > now and len(self._answers) <= self._most:
                return
            del self._answers[name]
            yield name, None


def _name(operation: Operation) -> bytes:
    return f"{_PREFIX}{operation.idempotency_key}".encode()
