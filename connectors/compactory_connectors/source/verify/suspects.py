"""Keys that need a closer look, with the bytes of both sides: looked at until there is a verdict on each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from compactory.kafka.client import Message
from compactory_connectors.connect.record.record import KeyParts

from ..postgres.chunk_reader import RawRow
from .checker import Finding, Row, Rules, Stored, check
from .outcome import Difference, Found
from .table_side import Expected

__all__ = ["Suspects"]


class Suspects:
    """Keys by their numbers. Owned by one thread; pure but for what it is told."""

    def __init__(
        self,
        found: Mapping[int, Finding],
        number_of: Callable[[bytes], int],
        parts_of: Sequence[Callable[[RawRow], KeyParts]],
    ) -> None:
        self.findings: dict[int, Finding] = dict(found)
        self.watched = set(found)
        """Those on which there is no verdict yet."""
        self._number_of = number_of
        self._parts_of = parts_of
        self._records: dict[int, dict[int, Found]] = {}
        self._rows: dict[int, list[Expected]] = {}
        self._parts: dict[int, set[tuple[int, KeyParts]]] = {}
        self._checked_by: tuple[Mapping[int, int], Rules] = ({}, Rules())

    def take_records(self, messages: Iterable[Message]) -> None:
        """Records of the topic, those of a partition in its order."""
        number_of, watched = self._number_of, self.watched
        for message in messages:
            key = message.key()
            if isinstance(key, bytes) and (number := number_of(key)) in watched:
                found = _found(key, message)
                self._records.setdefault(number, {})[found.partition] = found

    def begin_rows(self) -> None:
        """A new look at the tables begins: what they said before is forgotten."""
        self._rows = {number: its for number, its in self._rows.items() if number not in self.watched}

    def take_rows(self, table: int, rows: Iterable[Expected]) -> None:
        """Rows of one of the tables."""
        number_of, watched = self._number_of, self.watched
        for row in rows:
            number = number_of(row[0])
            if number in watched:
                self._rows.setdefault(number, []).append(row)
                self._parts.setdefault(number, set()).add((table, self._parts_of[table](row[3])))

    def parts(self, table: int) -> list[KeyParts]:
        """The key's columns of the watched keys in a table."""
        found = (self._parts.get(number, ()) for number in self.watched)
        return list({parts for its in found for its_table, parts in its if its_table == table})

    @property
    def known(self) -> bool:
        """Whether a row of each watched key was seen, so that it can be looked up."""
        return self.watched <= self._parts.keys()

    def check(self, marks: Mapping[int, int], rules: Rules) -> None:
        """Say something of every watched key; those on which there is a verdict now are watched no more."""
        self._checked_by = marks, rules
        for number in list(self.watched):
            rows = [(value or b"", flags) for _, value, flags, _ in self._rows.get(number, ())]
            finding = check(rows, self._stored(number, marks), rules)
            self.findings[number] = finding
            if not finding.open:
                self.watched.discard(number)

    def give_up_on_sweeps(self) -> None:
        """The time is up: keys that a running source has not removed by now are there to stay, held or forgotten."""
        marks, rules = self._checked_by
        self.check(marks, replace(rules, sweeps_later=False))

    def difference(self, number: int) -> Difference:
        """A key that differs for good, with both its values."""
        record = self._newest(number)
        living = [row for row in self._rows.get(number, ()) if not row[2] & (Row.ABSENT | Row.UNREADABLE)]
        key = record.key if record is not None else living[0][0]
        return Difference(
            finding=self.findings[number],
            key=key,
            expected=living[0][1] if living else None,
            found=record,
            partitions=tuple(
                sorted(at for at, each in self._records.get(number, {}).items() if each.value is not None)
            ),
        )

    def _newest(self, number: int) -> Found | None:
        """The record that lookups find, of several partitions the one with the newer timestamp."""
        its = self._records.get(number, {}).values()
        return max(its, key=lambda each: (each.timestamp_ms, each.partition), default=None)

    def _stored(self, number: int, marks: Mapping[int, int]) -> tuple[bytes, int] | None:
        record = self._newest(number)
        if record is None:
            return None
        flags = Stored.LATE if record.offset >= marks.get(record.partition, 0) else 0
        return record.value or b"", flags | (Stored.TOMBSTONE if record.value is None else 0)


def _found(key: bytes, message: Message) -> Found:
    value = message.value()
    assert value is None or isinstance(value, bytes)
    return Found(key, value, message.partition() or 0, message.offset() or 0, message.timestamp()[1])
