"""The first answers to requests with an Idempotency-Key, kept for their repeats."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from compactory.codec.encoding import json_bytes
from compactory.token import Token
from compactory_mastered.operation import Operation, Written
from compactory_mastered.rules import WriteRules

__all__ = ["Answers"]

Record = tuple[bytes, bytes]

_PREFIX = "answer:"  # of the record's key in the topic of answers
_PER_BATCH = 1000  # outdated answers that are forgotten in one transaction at most


class Answers:
    """The answers in the topic of answers, by Idempotency-Key, kept by its only writer.

    Bounded by the rules: an answer is forgotten after ``remember`` seconds, and the oldest ones where there are more
    than ``remember_at_most`` or than ``remember_bytes``. Owned by the writer's thread.
    """

    def __init__(self, records: Mapping[str, bytes], rules: WriteRules) -> None:
        self._rules = rules
        stored = [
            (orjson.loads(value)["until"], key, value) for key, value in records.items() if key.startswith(_PREFIX)
        ]
        self._answers = OrderedDict((key.encode(), (until, value)) for until, key, value in sorted(stored))
        self._bytes = sum(len(name) + len(value) for name, (_, value) in self._answers.items())

    def find(self, operation: Operation) -> Written | None:
        """Return the first answer to an operation. Raises WriteRefused where its key was used for another one."""
        stored = self._answers.get(_name(operation))
        if stored is None:
            return None
        answer = orjson.loads(stored[1])
        operation.check_repeat(answer["fingerprint"])
        content = answer["content"]
        return Written(
            status=answer["status"],
            key=answer["key"] if operation.key is None else operation.key,
            content=None if content is None else orjson.dumps(content),
            token=Token(*answer["token"]),
            repeated=True,
        )

    def keep(self, operation: Operation, written: Written) -> Record:
        """Keep an answer; return its record, for the transaction of the write. If that fails, drop these answers.

        The record has a few hundred bytes beside the content: a key of the operation is not in it, as a repeat has it.
        """
        until = round(time.time() + self._rules.remember, 3)
        answer: dict[str, Any] = {
            "fingerprint": operation.fingerprint(),
            "status": written.status,
            "key": written.key if operation.key is None else None,
            "content": None if written.content is None else orjson.Fragment(written.content),
            "token": list(written.token),
            "until": until,
        }
        name, value = _name(operation), json_bytes(answer)
        self._answers[name] = until, value
        self._bytes += len(name) + len(value)
        return name, value

    def outdated(self) -> Iterator[tuple[bytes, None]]:
        """Forget what is too old or too much; return the tombstones of its records."""
        now, count = time.time(), 0
        while self._answers:
            name, (until, value) = next(iter(self._answers.items()))
            if not self._is_full() and (until > now or count >= _PER_BATCH):
                return
            del self._answers[name]
            self._bytes -= len(name) + len(value)
            count += 1
            yield name, None

    def _is_full(self) -> bool:
        return len(self._answers) > self._rules.remember_at_most or self._bytes > self._rules.remember_bytes


def _name(operation: Operation) -> bytes:
    return f"{_PREFIX}{operation.idempotency_key}".encode()
