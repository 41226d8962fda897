"""The entries as they are at the end of the log: those of the store, and over them what it has not read yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from compactory.codec.decoding import field_reader, make_term
from compactory.codec.packed_record import ORIGIN_SIZE, unpack_origin
from compactory.errors import DecodeError, WriteRefused
from compactory.read.view import View
from compactory.records import Partition
from compactory.token import Version
from compactory_mastered.operation import Operation

__all__ = ["CurrentState", "Held", "Terms", "Write"]

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


@dataclass(slots=True, eq=False, kw_only=True)
class Write(Held):
    """The record of an operation that is allowed. ``name`` is its key, ``there`` an earlier record that it repeats."""

    operation: Operation
    key: str
    name: bytes
    status: Literal["created", "replaced", "deleted"]
    there: Held | None = None


class CurrentState:
    """The state that the next write is checked against, by record key. Owned by the only thread that writes.

    Complete if the store had read the topic to its end when this was made, and nobody else has written since.
    """

    def __init__(self, view: View[Any], unique: tuple[tuple[str, ...], ...], topic_id: str | None) -> None:
        self.topic_id = topic_id
        self._view = view
        self._indexes = {
            index.name: (index.fields, [*map(field_reader, index.fields)]) for index in view.directory.indexes
        }
        self._unique = {index.name for fields in unique if (index := view.directory.index_over(fields)) is not None}
        self._recent: dict[bytes, Held] = {}  # written, and not certainly read by the store
        self._keys: dict[tuple[str, Any], bytes] = {}  # index and unique value → key of _recent that has it

    def entry(self, key: bytes) -> Held | None:
        """Return the entry of a key, None if there is none. A bad record is none: a write mends it."""
        held = self._recent.get(key)
        if held is not None:
            return held if held.data is not None else None
        packed = self._view.packed(key)
        if packed is None:
            return None
        partition, offset, _ = unpack_origin(packed)
        return Held(packed[:-ORIGIN_SIZE], partition, offset)

    def tag(self, held: Held) -> str:
        """Return the entity tag of an entry."""
        return str(Version(self.topic_id or self._view.directory.topic, held.partition, held.offset))

    def terms(self, document: dict[str, Any]) -> Terms:
        """Return the unique values of a document. Raises WriteRefused for a value that no index can hold."""
        terms = []
        for index, (fields, readers) in self._indexes.items():
            values = [read(document) for read in readers]
            try:
                term = values[0] if len(values) == 1 and type(values[0]) is str else make_term(fields, values)
            except DecodeError as error:
                raise WriteRefused(str(error)) from error
            if term is not None and index in self._unique:
                terms.append((index, term))
        return tuple(terms)

    def write(self, write: Write) -> None:
        """Take down a record that is about to be written."""
        if write.name in self._recent:
            self._forget(write.name)
        self._recent[write.name] = write
        for filed in write.terms:
            self._keys[filed] = write.name

    def taken(self, key: bytes, terms: Terms) -> tuple[str, ...]:
        """Return the fields of a unique value that another entry has; none if there is no such value."""
        for filed in terms:
            if self._keys.get(filed, key) != key:
                return self._indexes[filed[0]][0]
            for other in self._view.may_have(*filed):
                held = self.entry(other) if other != key else None
                if held is not None and filed in self.terms(held.document):
                    return self._indexes[filed[0]][0]
        return ()

    def prune(self, positions: Mapping[Partition, int]) -> None:
        """Drop what the store has read by now."""
        topic, read = self._view.directory.topic, []
        ends = {place.partition: position for place, position in positions.items() if place.topic == topic}
        for key, held in self._recent.items():  # in the order in which they were written
            if not 0 <= held.offset < ends.get(held.partition, 0):
                break  # of another partition there may be more; they go later
            read.append(key)
        for key in read:
            self._forget(key)

    def _forget(self, key: bytes) -> None:
        for filed in self._recent.pop(key).terms:
            del self._keys[filed]
