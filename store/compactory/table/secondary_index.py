"""Secondary indexes of one directory: which lookup keys have a value in a field. Pure.

An index stores lookup keys, not packed records: an update that does not change the field does not change the index.
A reader gets the entry and checks its value, so it never returns an entry that does not match. A lookup key is added
under its new term before the entry changes, and removed from its old term afterwards. So a reader sees the change of
an entry at once, by either term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from compactory.codec.decoding import Document, Term, field_reader, field_values, make_term
from compactory.directory import Index
from compactory.storage.backend import Postings
from compactory.table.key_owners import EntryUpdate

__all__ = ["IndexWriter", "SecondaryIndex", "TermChanges", "Terms"]

_TERM_TYPES = {str, int, float, type(None)}  # values of these types are terms as they are


class SecondaryIndex:
    """Makes the terms of an `Index`, and writes its postings.

    A unique index keeps all lookup keys with a value: the reader returns the entry whose record is newest (timestamp,
    then partition, then offset), so that the next one appears when it is deleted. The table's thread writes. Any thread
    may compute terms.
    """

    def __init__(self, index: Index, postings: Postings) -> None:
        self.index = index
        self._postings = postings
        self._readers: tuple[Callable[[Document], Any], ...] = tuple(map(field_reader, index.fields))

    def term_of(self, doc: Document) -> Term | None:
        """Return the term of a document, None if it has no value. Raises DecodeError for values that have no term."""
        if len(self._readers) == 1:
            value = self._readers[0](doc)
            if type(value) in _TERM_TYPES:
                return value
        return make_term(self.index.fields, [read(doc) for read in self._readers])

    def terms_of(self, docs: Sequence[Document]) -> list[Term | None]:
        """Return the terms of many documents, as `term_of` does."""
        if len(self.index.fields) == 1:
            values = field_values(self.index.fields[0], docs)
            if set(map(type, values)) <= _TERM_TYPES:
                return values
        return list(map(self.term_of, docs))

    def term_for(self, values: Mapping[str, Any]) -> Term | None:
        """Return the term of looked-up values, by field."""
        return make_term(self.index.fields, [values[field] for field in self.index.fields])

    def extend(self, terms: Sequence[Term | None], lookup_keys: Sequence[bytes]) -> None:
        """Add new lookup keys under their terms."""
        self._postings.extend(terms, lookup_keys)

    def enter(self, lookup_key: bytes, old: Term | None, new: Term | None) -> None:
        """Add a lookup key under its new term. Called before its entry changes."""
        if new is not None and new != old:
            self._postings.add(new, lookup_key)

    def leave(self, lookup_key: bytes, old: Term | None, new: Term | None) -> None:
        """Remove a lookup key from its old term. Called after its entry has changed."""
        if old is not None and new != old:
            self._postings.discard(old, lookup_key)

    def enter_all(self, lookup_keys: Sequence[bytes], olds: Sequence[Term | None], news: Sequence[Term | None]) -> None:
        """Call `enter` for many lookup keys."""
        changed = [(new, key) for key, old, new in zip(lookup_keys, olds, news, strict=True) if new not in (None, old)]
        self._postings.extend([new for new, _ in changed], [key for _, key in changed])

    def leave_all(self, lookup_keys: Sequence[bytes], olds: Sequence[Term | None], news: Sequence[Term | None]) -> None:
        """Call `leave` for many lookup keys."""
        for lookup_key, old, new in zip(lookup_keys, olds, news, strict=True):
            self.leave(lookup_key, old, new)


Terms = tuple[Term | None, ...]
"""The terms of one entry, in the order of the indexes."""
TermChanges = tuple[tuple[SecondaryIndex, Term | None, Term | None], ...]
"""Each index with the old and the new term of one entry."""


class IndexWriter:
    """Keeps all indexes of a table up to date while single entries change. For the table's thread."""

    def __init__(self, indexes: Iterable[SecondaryIndex], document_of: Callable[[bytes], Document]) -> None:
        self._indexes = tuple(indexes)
        self._document_of = document_of

    def terms_of(self, doc: Document) -> Terms:
        """Return the terms of a document. Raises DecodeError for values that have no term."""
        return tuple([index.term_of(doc) for index in self._indexes]) if self._indexes else ()

    def begin(self, update: EntryUpdate, new_terms: Terms | None) -> TermChanges:
        """Add the lookup key under its new terms, before the entry changes. None for ``new_terms``: compute them."""
        if not self._indexes or update.old == update.new:
            return ()
        old_terms = self._terms_of_packed(update.old)
        new_terms = self._terms_of_packed(update.new) if new_terms is None else new_terms
        changes = tuple(zip(self._indexes, old_terms, new_terms, strict=True))
        for index, old, new in changes:
            index.enter(update.lookup_key, old, new)
        return changes

    def finish(self, lookup_key: bytes, changes: TermChanges) -> None:
        """Remove the lookup key from its old terms, after the entry has changed."""
        for index, old, new in changes:
            index.leave(lookup_key, old, new)

    def _terms_of_packed(self, packed: bytes | None) -> Terms:
        if packed is None:
            return (None,) * len(self._indexes)
        return self.terms_of(self._document_of(packed))
