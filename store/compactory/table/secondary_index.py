"""A secondary index of one directory: which entries have a value in a field. Pure.

It files lookup keys, not packed records: an update that leaves the field alone leaves the index alone. A reader fetches
the entry and checks that it has the value, so it never gets an entry that does not match. A key is filed under its new
value before the entry changes, and taken out from under the old one afterwards. So a reader sees the entry's change at
once, whichever way it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compactory.codec.decoding import Document, Term, field_reader, field_values, make_term
from compactory.directory import Index
from compactory.storage.backend import Postings

__all__ = ["SecondaryIndex"]

_AS_THEY_ARE = {str, int, float, type(None)}  # values that are their own terms


class SecondaryIndex:
    """The terms that an `Index` makes of values, and the writing side of its postings.

    A unique index keeps every key that has the value: the reader picks the one whose record is newest (timestamp, then
    partition, then offset), so that the next appears when it goes. Written by the table's thread; what it computes may
    be asked by any.
    """

    def __init__(self, index: Index, postings: Postings) -> None:
        self.index = index
        self._postings = postings
        self._readers: tuple[Callable[[Document], Any], ...] = tuple(field_reader(field) for field in index.fields)

    def term_of(self, doc: Document) -> Term | None:
        """Return what the document is filed under; None for nothing. Raises DecodeError for what can't be indexed."""
        if len(self._readers) == 1:
            value = self._readers[0](doc)
            if type(value) in _AS_THEY_ARE:
                return value
        return make_term(self.index.fields, [read(doc) for read in self._readers])

    def terms_of(self, docs: Sequence[Document]) -> list[Term | None]:
        """Return `term_of` of many documents."""
        if len(self.index.fields) == 1:
            values = field_values(self.index.fields[0], docs)
            if set(map(type, values)) <= _AS_THEY_ARE:
                return values
        return list(map(self.term_of, docs))

    def term_for(self, values: Mapping[str, Any]) -> Term | None:
        """Return the term of looked-up values, by field."""
        return make_term(self.index.fields, [values[field] for field in self.index.fields])

    def extend(self, terms: Sequence[Term | None], names: Sequence[bytes]) -> None:
        """File entries that are new."""
        self._postings.extend(terms, names)

    def enter(self, name: bytes, old: Term | None, new: Term | None) -> None:
        """File ``name``, whose entry is about to change, under ``new``. Before the entry changes."""
        if new is not None and new != old:
            self._postings.add(new, name)

    def leave(self, name: bytes, old: Term | None, new: Term | None) -> None:
        """Take ``name`` out from under ``old``. After the entry has changed."""
        if old is not None and new != old:
            self._postings.discard(old, name)

    def enter_all(self, names: Sequence[bytes], olds: Sequence[Term | None], news: Sequence[Term | None]) -> None:
        """Do what `enter` does for many names."""
        moved = [(new, name) for name, old, new in zip(names, olds, news, strict=True) if new not in (None, old)]
        self._postings.extend([new for new, _ in moved], [name for _, name in moved])

    def leave_all(self, names: Sequence[bytes], olds: Sequence[Term | None], news: Sequence[Term | None]) -> None:
        """Do what `leave` does for many names."""
        for name, old, new in zip(names, olds, news, strict=True):
            self.leave(name, old, new)
