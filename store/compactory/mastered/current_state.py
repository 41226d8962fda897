"""The entries as they are at the end of the log: those of the store, and over them what it has not read yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from compactory.codec.decoding import path, term
from compactory.directory import Index
from compactory.errors import BadRecord
from compactory.lookup.view import View
from compactory.records import Partition

__all__ = ["CurrentState", "Held"]


@dataclass(slots=True, eq=False)
class Held:
    """An entry's newest record. ``data`` is None for a tombstone; the place is known once Kafka has the record.

    ``terms`` are the index and the term of each unique value, of a record that the store may not have read.
    """

    data: bytes | None
    partition: int = -1
    offset: int = -1
    terms: tuple[tuple[str, Any], ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        """The value; only where there is one."""
        assert self.data is not None
        found: dict[str, Any] = orjson.loads(self.data)
        return found


class CurrentState:
    """What the next write is checked against. Owned by the writer's thread, which is the only one that writes.

    Complete if the store had read the topic to its end when this was made, and nobody else has written since.
    """

    def __init__(self, view: View[Any], unique: tuple[tuple[str, ...], ...]) -> None:
        self._view = view
        indexes = [view.directory.index_over(fields) for fields in unique]
        self._unique: list[tuple[Index, list[Any]]] = [
            (index, [path(name) for name in index.fields]) for index in indexes if index is not None
        ]
        self._recent: dict[str, Held] = {}  # written, and not certainly read by the store
        self._keys: dict[tuple[str, Any], set[str]] = {}  # index and unique value → keys of _recent that have it

    def entry(self, key: str) -> Held | None:
        """Return the entry of a key, None if there is none."""
        held = self._recent.get(key)
        if held is not None:
            return held if held.data is not None else None
        try:
            found = self._view.entry(key)
        except BadRecord:  # a write mends it
            return None
        except KeyError:
            return None
        return Held(found.value, found.partition, found.offset)

    def write(self, key: str, document: dict[str, Any] | None, data: bytes | None) -> Held:
        """Take down a record that is about to be written."""
        self._forget(key)
        held = self._recent[key] = Held(data)
        if document is not None and self._unique:
            terms = [
                (index.name, term(index.fields, [read(document) for read in readers]))
                for index, readers in self._unique
            ]
            held.terms = tuple(filed for filed in terms if filed[1] is not None)
            for filed in held.terms:
                self._keys.setdefault(filed, set()).add(key)
        return held

    def other_with_unique_value(self, key: str, document: dict[str, Any]) -> tuple[str, ...] | None:
        """Return the fields of a unique value of the document that another entry has, None if there is none."""
        for index, readers in self._unique:
            values = [read(document) for read in readers]
            value = term(index.fields, values)
            if value is None:
                continue
            if self._keys.get((index.name, value), set()) - {key}:
                return index.fields
            if not set(self._view.may_have(index.name, value)) - {key.encode()}:
                continue
            found = self._view.find_entries(**dict(zip(index.fields, values, strict=True)))
            if any(entry.key != key and entry.key not in self._recent for entry in found):
                return index.fields
        return None

    def prune(self, positions: Mapping[Partition, int]) -> None:
        """Drop what the store has read by now."""
        topic = self._view.directory.topic
        read = [
            key
            for key, held in self._recent.items()
            if 0 <= held.offset < positions.get(Partition(topic, held.partition), 0)
        ]
        for key in read:
            self._forget(key)

    def _forget(self, key: str) -> None:
        held = self._recent.pop(key, None)
        for filed in held.terms if held is not None else ():
            keys = self._keys[filed]
            keys.discard(key)
            if not keys:
                del self._keys[filed]
