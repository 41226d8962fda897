"""Finds entries by indexed fields while the reader's thread writes: each key of an index is checked against its entry.

Functions of one table, for any thread; none takes a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from compactory.codec.decoding import Term
from compactory.codec.packed_record import recency
from compactory.errors import DecodeError, UnknownIndex
from compactory.storage.backend import Reading
from compactory.table.secondary_index import SecondaryIndex
from compactory.table.table import ReadableTable

__all__ = ["Pair", "index_named", "index_over", "matching", "matching_between"]

Pair = tuple[bytes, bytes]
"""A lookup key and its packed record."""


def index_named(table: ReadableTable, name: str) -> SecondaryIndex:
    """Return the index of this name. Raises UnknownIndex."""
    secondary = table.indexes.get(name)
    if secondary is None:
        raise _unknown(table, repr(name), map(repr, table.indexes))
    return secondary


def index_over(table: ReadableTable, fields: Mapping[str, Any]) -> SecondaryIndex:
    """Return the index over exactly these fields. Raises UnknownIndex."""
    index = table.directory.index_over(fields)
    if index is None:
        existing = ("+".join(index.fields) for index in table.directory.indexes)
        raise _unknown(table, f"over {'+'.join(fields) or 'no field'}", existing)
    return table.indexes[index.name]


def _unknown(table: ReadableTable, requested: str, existing: Iterable[str]) -> UnknownIndex:
    return UnknownIndex(
        f"directory {table.directory.name!r} has no index {requested}; it has: {', '.join(existing) or 'none'};"
        " declare it in the directory's indexes"
    )


def matching(table: ReadableTable, secondary: SecondaryIndex, fields: Mapping[str, Any]) -> list[Pair]:
    """Return the entries that have these values right now; a unique index gives at most one."""
    term = _term(secondary, fields)
    if term is None:
        return []
    pairs = _pairs_with(table, secondary, term)
    if secondary.index.unique and len(pairs) > 1:
        return [max(pairs, key=lambda pair: recency(pair[1]))]
    return pairs


def matching_between(
    table: ReadableTable, secondary: SecondaryIndex, fields: Mapping[str, Any], start: bytes, stop: bytes | None
) -> Iterator[Pair]:
    """Yield the entries that have these values, from ``start`` to before ``stop``, in order, each as it is by then."""
    if secondary.index.unique:
        pairs = matching(table, secondary, fields)
        yield from (pair for pair in pairs if start <= pair[0] and (stop is None or pair[0] < stop))
        return
    term = _term(secondary, fields)
    if term is None:
        return
    reading = table.directory_storage.reading()
    names = reading.keys_of_term_between(secondary.index.name, term, start, stop)
    yield from _pairs_of(table, secondary, term, reading, names)


def _term(secondary: SecondaryIndex, fields: Mapping[str, Any]) -> Term | None:
    try:
        return secondary.term_for(fields)
    except DecodeError:
        return None


def _pairs_with(table: ReadableTable, secondary: SecondaryIndex, term: Term) -> list[Pair]:
    """Return all entries that have the term right now."""
    index = secondary.index.name
    reading = table.directory_storage.reading()
    names = reading.keys_of_term(index, term)
    while True:
        pairs = list(_pairs_of(table, secondary, term, reading, names))
        if pairs or not names:
            return pairs
        previous, names = names, reading.keys_of_term(index, term)
        if names == previous:
            return []  # else another entry got the term meanwhile: the index had it first


def _pairs_of(
    table: ReadableTable, secondary: SecondaryIndex, term: Term, reading: Reading, names: Iterable[bytes]
) -> Iterator[Pair]:
    entries = reading.entries
    for name in names:
        packed = entries.get(name)
        if packed is not None and secondary.term_of(table.document_of(packed)) == term:
            yield name, packed
