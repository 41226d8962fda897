"""The entries as they are at the end of the log: those of the store, and over them what it has not read yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from compactory.codec.decoding import path, term
from compactory.directory import Index
from compactory.lookup.view import View
from compactory.records import Partition

__all__ = ["CurrentState", "Held", "Terms"]

Terms = tuple[tuple[str, Any], ...]
"""The index and the term of each unique value of a document."""


@dataclass(slots=True, eq=False)
class Held:
    """An entry's newest record. ``data`` is None for a tombstone; the place is known once Kafka has the record.

    ``terms`` are the index and the term of each unique value, of a record that the store may not have read.
    """

    data: bytes | None
    partition: int = -1
    offset: int = -1
    terms: Terms = ()

    @property
    def document(self) -> dict[str, Any]:
        """The value; only where there is one."""
        assert self.data is not None
        found: dict[str, Any] = orjson.loads(self.data)
        return found


class CurrentState:
    """The state that the next write is checked against. Owned by the writer's thread, the only one that writes.

    Complete if the store had read the topic to its end when this was made, and nobody else has written since.
    """

    def __init__(self, view: View[Any], unique: tuple[tuple[str, ...], ...]) -> None:
        self._view = view
        indexes = [view.directory.index_over(fields) for fields in unique]
        self._unique: list[tuple[Index, list[Any]]] = [
            (index, [path(name) for name in index.fields]) for index in indexes if index is not None
        ]
        self._recent: dict[str, Held] = {}  # written, and not certainly read by the store
        self._keys: dict[tuple[str, Any], str] = {}  # index and unique value → key of _recent that has it

    def entry(self, key: str) -> Held | None:
        """Return the entry of a key, None if there is none."""
        held = self._recent.get(key)
        if held is not None:
            return held if held.data is not None else None
        if key not in self._view:  # nor for a bad record: a write mends it
            return None
        try:
            found = self._view.entry(key)
        except KeyError:
            return None
        return Held(found.value, found.partition, found.offset)

    def terms(self, document: dict[str, Any]) -> Terms:
        """Return the unique values of a document. Raises DecodeError for one that no index can hold."""
        found = []
        for index, readers in self._unique:
            values = [read(document) for read in readers]
            filed = values[0] if len(values) == 1 and type(values[0]) is str else term(index.fields, values)
            if filed is not None:
                found.append((index.name, filed))
        return tuple(found)

    def write(self, key: str, held: Held) -> None:
        """Take down a record that is about to be written."""
        if key in self._recent:
            self._forget(key)
        self._recent[key] = held
        for filed in held.terms:
            self._keys[filed] = key

    def other_with_unique_value(self, key: str, document: dict[str, Any], terms: Terms) -> tuple[str, ...] | None:
        """Return the fields of a unique value of the document that another entry has, None if there is none."""
        own = [key.encode()]
        for filed in terms:
            sharing = self._keys.get(filed, key)
            indexed = self._view.may_have(*filed)
            if sharing == key and (not indexed or indexed == own):
                continue
            index, readers = next(each for each in self._unique if each[0].name == filed[0])
            if sharing != key:
                return index.fields
            values = [read(document) for read in readers]
            found = self._view.find_entries(**dict(zip(index.fields, values, strict=True)))
            if any(entry.key != key and entry.key not in self._recent for entry in found):
                return index.fields
        return None

    def prune(self, positions: Mapping[Partition, int]) -> None:
        """Drop what the store has read by now."""
        topic, read = self._view.directory.topic, []
        for key, held in self._recent.items():  # in the order in which they were written
            if not 0 <= held.offset < positions.get(Partition(topic, held.partition), 0):
                break  # of another partition there may be more; they go later
            read.append(key)
        for key in read:
            self._forget(key)

    def _forget(self, key: str) -> None:
        for filed in self._recent.pop(key).terms:
            del self._keys[filed]
