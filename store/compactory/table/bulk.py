"""Applies runs column by column, at the speed of C, as far as records do not depend on each other. Pure.

Loading a million records one by one costs 2 to 10 µs each; a column costs some 30 ns a record. Whatever needs a closer
look (an update, a deletion, another owner, a bad value) is given back, to be applied record by record.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from itertools import compress, repeat
from operator import add
from typing import Any, cast

import orjson

from compactory.codec.decoding import (
    Document,
    Term,
    check_objects,
    check_utf8,
    decoder,
    document_reader,
    field_values,
    lookup_keys_from,
)
from compactory.codec.packed_record import ORIGIN_SIZE, count_by_partition, first_address, pack_origin
from compactory.directory import Directory
from compactory.errors import DecodeError
from compactory.table.batch import RecordRun
from compactory.table.secondary_index import SecondaryIndex
from compactory.watch.change_log import ChangeLog

__all__ = ["ColumnApplier"]

Mask = list[bool]
ALL: Mask = [True]  # the mask that keeps every record, known by identity
NONE: Mask = []  # keeps none, whatever the length
_FEW = 4  # records of a run
_NOTHING: Document = {}


class ColumnApplier:
    """The column-wise way into one table's mappings. Belongs to the table's thread."""

    def __init__(
        self,
        directory: Directory[Any],
        entries: MutableMapping[bytes, bytes],
        owners: MutableMapping[bytes, bytes],
        indexes: Mapping[str, SecondaryIndex],
        changes: ChangeLog,
        *,
        decodes: bool,
    ) -> None:
        self._entries = entries
        self._owners = owners
        self._indexes = tuple(indexes.values())
        self._changes = changes
        self._key = directory.key
        self._active = directory.active
        self._document = None if directory.envelope == "none" else document_reader(directory.envelope)
        self._decode = decoder(directory) if decodes else None
        self._decodes_objects = decodes and directory.decode is dict and self._document is None
        self._reads_documents = bool(directory.active or directory.indexes or self._document)

    def apply_in_order(self, run: RecordRun, *, multi_partition: bool) -> bool:
        """Apply a run to a table without key field, in its order; False: nothing was done.

        It takes updates. It takes no deletion, and in a topic that is ``multi_partition`` no key that another partition
        has written. If indexes or an active field need the documents, it takes no key that comes twice, and no run so
        short that one by one is quicker.
        """
        if not all(run.keys) or not all(run.values):
            return False
        keys, values = cast("list[bytes]", run.keys), cast("list[bytes]", run.values)
        if multi_partition and self._touches_others(keys, run.partition.partition):
            return False
        if self._reads_documents and (len(keys) < _FEW or len(set(keys)) < len(keys)):
            return False
        try:
            check_utf8(keys)
            docs = self._read(values, documents=self._reads_documents)
            terms = [index.terms_of(docs) for index in self._indexes]
        except Exception:  # noqa: BLE001 (the slow way finds which record it is)
            return False
        if self._active is not None and False in field_values(self._active, docs):
            return False
        packed_records: Iterable[bytes] = _packed_records(run, values)
        olds = list(map(self._entries.get, keys)) if self._indexes or self._changes.recording else []
        if self._changes.recording:
            packed_records = list(packed_records)
            self._changes.add_updates(keys, olds, packed_records)
        former = self._former_terms(olds)
        for index, old, new in zip(self._indexes, former, terms, strict=True):
            index.enter_all(keys, old, new)
        self._entries.update(zip(keys, packed_records, strict=True))
        for index, old, new in zip(self._indexes, former, terms, strict=True):
            index.leave_all(keys, old, new)
        return True

    def apply_fresh(self, run: RecordRun) -> RecordRun:
        """Apply the records that stand alone; return the rest in their order.

        A record stands alone when its key is new to the table and comes once in the run, and so is its lookup key. The
        order between them and the rest is not kept: a store that is loading has no readers.
        """
        taken = self._alone(run)
        part = run if taken is ALL else run.where(taken)
        try:
            check_utf8(cast("list[bytes]", part.keys))
            docs = self._read(cast("list[bytes]", part.values), documents=True)
            names, terms = self._columns(part, docs)
        except Exception:  # noqa: BLE001 (the slow way finds which record it is)
            return run
        free = self._free(docs, names)
        if free is not ALL:
            part, names = part.where(free), list(compress(names, free))
            terms = [list(compress(values, free)) for values in terms]
        self._write(part, names, terms)
        return run.where(_neither(run, taken, free))

    def _touches_others(self, keys: Sequence[bytes], partition: int) -> bool:
        """Say whether another partition has written one of the keys: the place's upper two bytes tell."""
        if self._entries.keys().isdisjoint(keys):
            return False
        return not count_by_partition(filter(None, map(self._entries.get, keys))).keys() <= {partition}

    def _read(self, values: list[bytes], *, documents: bool) -> list[Document]:
        """Check the values, and return their documents if these are needed. To read an object is to check it."""
        if self._decodes_objects and not documents:
            check_objects(values)
        elif self._decode is not None and not self._decodes_objects:
            deque(map(self._decode, values), maxlen=0)
        return self._documents(values) if documents else []

    def _alone(self, run: RecordRun) -> Mask:
        """Return which records have a value and a key that is new and comes once."""
        keys, values = run.keys, run.values
        owners = self._owners.keys()
        if all(keys) and all(values) and len(set(keys)) == len(keys) and owners.isdisjoint(keys):
            return ALL
        times = Counter(keys)
        return [
            bool(key and value and times[key] == 1 and key not in owners)
            for key, value in zip(keys, values, strict=True)
        ]

    def _documents(self, values: list[bytes]) -> list[Document]:
        if self._document is None:
            docs = list(map(orjson.loads, values))
            if not set(map(type, docs)) <= {dict}:
                raise DecodeError("one of the values is not a JSON object")
            return docs
        found = list(map(self._document, values))
        if None in found:
            raise DecodeError("an envelope holds a deletion")  # nothing bad, but nothing for columns either
        return cast("list[Document]", found)

    def _former_terms(self, olds: Sequence[bytes | None]) -> list[list[Term | None]]:
        """Return the terms of each index that packed records have, which were read well once."""
        if not self._indexes:
            return []
        values = [packed[:-ORIGIN_SIZE] for packed in olds if packed is not None]
        read = iter(self._documents(values))
        docs = [_NOTHING if packed is None else next(read) for packed in olds]
        return [index.terms_of(docs) for index in self._indexes]

    def _columns(self, part: RecordRun, docs: list[Document]) -> tuple[list[bytes], list[list[Term | None]]]:
        """Return the lookup keys, and the terms of each index."""
        names = cast("list[bytes]", part.keys) if self._key is None else lookup_keys_from(self._key, docs)
        return names, [index.terms_of(docs) for index in self._indexes]

    def _free(self, docs: list[Document], names: list[bytes]) -> Mask:
        """Return which records are live and collide with nothing."""
        masks: list[Mask] = []
        if self._active is not None:
            flags = field_values(self._active, docs)
            if flags.count(True) != len(flags):
                masks.append([flag is not False for flag in flags])
        if self._key is not None:
            masks.append(_new(names, self._entries.keys()))
        masks = [mask for mask in masks if mask is not ALL]
        return [all(row) for row in zip(*masks, strict=True)] if masks else ALL

    def _write(self, run: RecordRun, names: list[bytes], terms: list[list[Term | None]]) -> None:
        packed_records = list(_packed_records(run, cast("list[bytes]", run.values)))
        if self._key is not None:
            self._owners.update(zip(cast("list[bytes]", run.keys), packed_records, strict=True))
        self._entries.update(zip(names, packed_records, strict=True))
        for index, values in zip(self._indexes, terms, strict=True):
            index.extend(values, names)


def _packed_records(run: RecordRun, values: list[bytes]) -> map[bytes]:
    base = first_address(run.partition.partition)
    offsets = run.offsets
    if isinstance(offsets, range):
        places: Iterable[int] = range(offsets.start + base, offsets.stop + base)
    else:
        places = map(add, offsets, repeat(base)) if base else offsets
    return map(add, values, map(pack_origin, places, run.stamps))


def _new(names: list[bytes], taken: Collection[bytes]) -> Mask:
    """Return which names come once and are not taken."""
    distinct = set(names)
    if len(distinct) == len(names) and cast("Any", taken).isdisjoint(distinct):
        return ALL
    times = Counter(names)
    return [times[name] == 1 and name not in taken for name in names]


def _neither(run: RecordRun, taken: Mask, free: Mask) -> Mask:
    """Return which records of the run were not taken or, of those that were, are not free."""
    if free is ALL:
        return NONE if taken is ALL else [not each for each in taken]
    of_taken = iter(free)
    return [not (each and next(of_taken)) for each in (repeat(True, len(run.keys)) if taken is ALL else taken)]
