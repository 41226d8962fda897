"""Holds a poll that would change the values of too many keys of a directory (guarantee 13).

A poll whose records are few beside the table's rows passes at once. Any other poll is read twice in one snapshot: its
records are compared with the topic before the first of them is published.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from hashlib import blake2b

from compactory.kafka.client import Kafka, Message
from compactory_connectors.kafka.producer_record import ProducerRecord
from compactory_connectors.kafka.topic_reader import newest_records

from ..polling.living_rows import LivingRows
from ..polling.reader import Reader, RecordBatch
from ..polling.removal import ChangedValue, Hold, keys_needed, too_many
from ..verify.comparison import Comparison
from .pending_approval import PendingApproval

__all__ = ["ChangeGuard"]

_SAMPLE = 5
_REUSE_SECONDS = 60.0  # the topic's values while a poll is held: nothing else is published to the topic


class ChangeGuard:
    """Counts the values that a table's polls change. Owned by the session's thread.

    ``percent`` of the topic's keys may change in one poll. Raises what Kafka's and Postgres' sides raise.
    """

    def __init__(self, kafka: Kafka, rows: LivingRows, approval: PendingApproval, percent: int) -> None:
        self._kafka = kafka
        self._rows = rows
        self._approval = approval
        self._percent = percent
        self._allowed = 0
        self._counted = 0
        self._changed: dict[int, int] = {}
        self._new_values: dict[bytes, bytes] = {}
        self._held_changes: set[int] = set()
        self._topic_values: Mapping[int, object] | None = None
        self._topic_read_at = 0.0

    def begin(self) -> None:
        self._allowed = 0
        self._forget_count()

    def passes(self, batch: RecordBatch, reader: Reader) -> bool:
        """Return True if a batch may be published without comparing the poll with the topic."""
        records = sum(value is not None for _, value, *_ in batch.records)
        if records > self._allowed:
            total = records + reader.rows_left()
            needed = keys_needed(total, self._percent)
            if needed and (not self._percent or self._rows.count(needed) < needed):
                return False
            self._allowed = total
        self._allowed -= records
        self._topic_values = None  # the batch changes them
        return True

    def count(self, topic: str, records: Iterable[ProducerRecord]) -> None:
        """Compare some records of the poll with the topic, in their order."""
        values = self._values_of(topic)
        for key, value, *_ in records:
            if key is None or value is None:
                continue
            self._counted += 1
            number = hash(key)
            if values.get(number) in {None, hash(value)}:
                self._changed.pop(number, None)
                self._new_values.pop(key, None)
                continue
            self._changed[number] = int.from_bytes(blake2b(key + b"\0" + value, digest_size=8).digest(), "big")
            if key in self._new_values or len(self._new_values) < _SAMPLE:
                self._new_values[key] = value

    def check(self, topic: str) -> None:
        """Raise PollHeld if the counted records change too many values and nobody has approved that."""
        if not self._counted:
            return
        keys = sum(value is not None for value in self._values_of(topic).values())
        if too_many(len(self._changed), keys, self._percent):
            hold = self._hold(topic, keys)
            limit = f"compactory.max.changed.percent is {self._percent}"
            self._approval.demand(
                hold,
                f"a poll would change the values of {hold.changed} of {keys} keys of topic {topic!r}, {hold.percent} %;"
                f" {limit}; the table waits as a whole, and lookups return the old values",
            )
        self._allowed += self._counted
        self._forget_count()

    def _hold(self, topic: str, keys: int) -> Hold:
        """Return the hold of the counted changes: the former one, unless too many changes are new."""
        changes = set(self._changed.values())
        former = self._approval.hold
        if (
            former is not None
            and former.changed
            and not too_many(len(changes - self._held_changes), keys, self._percent)
        ):
            return Hold(id=former.id, keys=keys, changed=len(changes), sample=former.sample)
        self._held_changes = changes
        old = newest_records(self._kafka, topic, self._new_values.keys())
        sample = tuple(
            ChangedValue(key=key, old=_value(old.get(key)), new=value) for key, value in self._new_values.items()
        )
        return Hold(id=f"{sum(changes) % (1 << 40):010x}", keys=keys, changed=len(changes), sample=sample)

    def _values_of(self, topic: str) -> Mapping[int, object]:
        if self._topic_values is None or time.monotonic() - self._topic_read_at > _REUSE_SECONDS:
            with Comparison.with_topic(self._kafka, topic) as comparison:
                self._topic_values, self._topic_read_at = comparison.newest, time.monotonic()
        return self._topic_values

    def _forget_count(self) -> None:
        self._counted, self._changed, self._new_values = 0, {}, {}


def _value(message: Message | None) -> bytes | None:
    value = message.value() if message is not None else None
    return value if isinstance(value, bytes) else None
