"""Keys that are not equal, with the values of both sides: checked until there is a verdict on each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from compactory.kafka.client import Message
from compactory_connectors.connect.record.record import KeyParts
from compactory_connectors.kafka.topic_reader import newest_rank

from ..postgres.chunk_reader import RawRow
from .checker import Difference, Finding, RecordFlag, Row, Rules, TopicRecord, check
from .table_side import Expected

__all__ = ["Suspects"]


class Suspects:
    """Suspected keys by their numbers. Owned by one thread; does no I/O."""

    def __init__(
        self,
        findings: Mapping[int, Finding],
        number_of: Callable[[bytes], int],
        parts_of: Sequence[Callable[[RawRow], KeyParts]],
    ) -> None:
        self.findings: dict[int, Finding] = dict(findings)
        self.watched = set(findings)
        """Numbers of the keys without a verdict."""
        self._number_of = number_of
        self._parts_of = parts_of
        self._records: dict[int, dict[int, TopicRecord]] = {}
        self._rows: dict[int, list[Expected]] = {}
        self._parts: dict[int, set[tuple[int, KeyParts]]] = {}
        self._last_check: tuple[Mapping[int, int], Rules] = ({}, Rules())

    def take_records(self, messages: Iterable[Message]) -> None:
        """Take records of the topic, those of a partition in its order."""
        number_of, watched = self._number_of, self.watched
        for message in messages:
            key = message.key()
            if isinstance(key, bytes) and (number := number_of(key)) in watched:
                record = _record(key, message)
                self._records.setdefault(number, {})[record.partition] = record

    def begin_rows(self) -> None:
        """Forget the rows of watched keys before the tables are read again."""
        self._rows = {number: rows for number, rows in self._rows.items() if number not in self.watched}

    def take_rows(self, table: int, rows: Iterable[Expected]) -> None:
        number_of, watched = self._number_of, self.watched
        for row in rows:
            number = number_of(row[0])
            if number in watched:
                self._rows.setdefault(number, []).append(row)
                self._parts.setdefault(number, set()).add((table, self._parts_of[table](row[3])))

    def parts(self, table: int) -> list[KeyParts]:
        watched = (self._parts.get(number, ()) for number in self.watched)
        return list({parts for group in watched for number, parts in group if number == table})

    @property
    def have_rows(self) -> bool:
        """Return True if a row of each watched key was read, so that it can be selected by its columns."""
        return self.watched <= self._parts.keys()

    def check(self, ends: Mapping[int, int], rules: Rules) -> None:
        """Check every watched key; keys with a verdict are watched no more."""
        self._last_check = ends, rules
        for number in list(self.watched):
            rows = [(value or b"", flags) for _, value, flags, _ in self._rows.get(number, ())]
            finding = check(rows, self._flagged_record(number, ends), rules)
            self.findings[number] = finding
            if not finding.is_open:
                self.watched.discard(number)

    def give_up_on_sweeps(self) -> None:
        """Take keys that a running source has not removed by now for extra: they are held or forgotten."""
        ends, rules = self._last_check
        self.check(ends, replace(rules, sweeps_later=False))

    def difference(self, number: int) -> Difference:
        """Return a key that stays different, with both values."""
        record = self._newest(number)
        living = [row for row in self._rows.get(number, ()) if not row[2] & (Row.ABSENT | Row.UNREADABLE)]
        key = record.key if record is not None else living[0][0]
        return Difference(
            finding=self.findings[number],
            key=key,
            expected=living[0][1] if living else None,
            stored=record,
            partitions=tuple(
                sorted(part for part, copy in self._records.get(number, {}).items() if copy.value is not None)
            ),
        )

    def _newest(self, number: int) -> TopicRecord | None:
        """Return the record that lookups find."""
        records = self._records.get(number, {}).values()
        return max(records, key=lambda record: newest_rank(record.timestamp_ms, record.partition), default=None)

    def _flagged_record(self, number: int, ends: Mapping[int, int]) -> tuple[bytes, int] | None:
        record = self._newest(number)
        if record is None:
            return None
        flags = RecordFlag.LATE if record.offset >= ends.get(record.partition, 0) else 0
        return record.value or b"", flags | (RecordFlag.TOMBSTONE if record.value is None else 0)


def _record(key: bytes, message: Message) -> TopicRecord:
    value = message.value()
    assert value is None or isinstance(value, bytes)
    return TopicRecord(key, value, message.partition() or 0, message.offset() or 0, message.timestamp()[1])
