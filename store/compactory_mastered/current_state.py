"""The entries at the end of the log: those of the store, and the writes that the store has not read yet."""

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
from compactory.write.operation import Operation

__all__ = ["AcceptedWrite", "CurrentEntry", "CurrentState", "UniqueTerms"]

UniqueTerms = tuple[tuple[str, Any], ...]
"""Index name and term of each unique value of a document."""


@dataclass(slots=True, eq=False)
class CurrentEntry:
    """The newest record of a key. ``data`` is None for a tombstone.

    ``partition`` and ``offset`` are -1 until Kafka has acknowledged the record.
    """

    data: bytes | None
    partition: int = -1
    offset: int = -1
    unique_terms: UniqueTerms = ()

    @property
    def document(self) -> dict[str, Any]:
        """The value of a record that is not a tombstone."""
        assert self.data is not None
        document: dict[str, Any] = orjson.loads(self.data)
        return document


@dataclass(slots=True, eq=False, kw_only=True)
class AcceptedWrite(CurrentEntry):
    """The record that an accepted operation writes.

    ``existing`` is the entry that a repeated ``post`` would create again: then nothing is written.
    """

    operation: Operation
    key: str
    record_key: bytes
    status: Literal["created", "replaced", "deleted"]
    existing: CurrentEntry | None = None


class CurrentState:
    """The state that the next operation is checked against, by record key. Owned by the only thread that writes.

    Complete if the store had read the topic to its end when this was created, and nobody else has written since.
    """

    def __init__(self, view: View[Any], unique: tuple[tuple[str, ...], ...], topic_id: str | None) -> None:
        self.topic_id = topic_id
        self._view = view
        self._indexes = {
            index.name: (index.fields, [*map(field_reader, index.fields)]) for index in view.directory.indexes
        }
        self._unique = {index.name for fields in unique if (index := view.directory.index_over(fields)) is not None}
        self._recent: dict[bytes, CurrentEntry] = {}  # written, and perhaps not yet read by the store
        self._recent_keys: dict[tuple[str, Any], bytes] = {}  # index name and term → record key in _recent

    def entry(self, record_key: bytes) -> CurrentEntry | None:
        """Return the entry of a key; None if there is none or its record is bad, so that a write replaces it."""
        recent = self._recent.get(record_key)
        if recent is not None:
            return recent if recent.data is not None else None
        packed = self._view.packed(record_key)
        if packed is None:
            return None
        partition, offset, _ = unpack_origin(packed)
        return CurrentEntry(packed[:-ORIGIN_SIZE], partition, offset)

    def etag(self, entry: CurrentEntry) -> str:
        """Return the entity tag of an entry, without quotes."""
        return str(Version(self.topic_id or self._view.directory.topic, entry.partition, entry.offset))

    def unique_terms(self, document: dict[str, Any]) -> UniqueTerms:
        """Return the unique terms of a document. Raises WriteRefused for a value that no index can contain."""
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

    def add(self, write: AcceptedWrite) -> CurrentEntry | None:
        """Add a record that is about to be written. Return the recent one that it replaces."""
        record_key = write.record_key
        previous = self._forget(record_key) if record_key in self._recent else None
        self._put(record_key, write)
        return previous

    def remove(self, write: AcceptedWrite, previous: CurrentEntry | None) -> None:
        """Undo the last `add`, which returned ``previous``."""
        self._forget(write.record_key)
        if previous is not None:
            self._put(write.record_key, previous)

    def conflicting_fields(self, record_key: bytes, unique_terms: UniqueTerms) -> tuple[str, ...]:
        """Return the fields of the first unique term that another entry has; () if there is no such term."""
        for term in unique_terms:
            index, value = term
            fields = self._indexes[index][0]
            if self._recent_keys.get(term, record_key) != record_key:
                return fields
            for candidate in self._view.may_have(index, value):
                entry = self.entry(candidate) if candidate != record_key else None
                if entry is not None and term in self.unique_terms(entry.document):
                    return fields
        return ()

    def prune(self, positions: Mapping[Partition, int]) -> None:
        """Forget the writes that the store has read: those before these positions."""
        topic = self._view.directory.topic
        read_to = {partition.partition: end for partition, end in positions.items() if partition.topic == topic}
        read_keys = []
        for record_key, entry in self._recent.items():  # in the order of the writes
            if not 0 <= entry.offset < read_to.get(entry.partition, 0):
                break  # a later call forgets those of other partitions that follow
            read_keys.append(record_key)
        for record_key in read_keys:
            self._forget(record_key)

    def _put(self, record_key: bytes, entry: CurrentEntry) -> None:
        self._recent[record_key] = entry
        for term in entry.unique_terms:
            self._recent_keys[term] = record_key

    def _forget(self, record_key: bytes) -> CurrentEntry:
        entry = self._recent.pop(record_key)
        for term in entry.unique_terms:
            del self._recent_keys[term]
        return entry
