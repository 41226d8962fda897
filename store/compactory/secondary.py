"""A secondary index of one directory: which entries have a value in a field. Pure.

It files lookup keys, not cells: an update that leaves the field alone then leaves the index alone. A reader fetches
the entry and checks that it has the value, so it never gets an entry that does not match. A key is filed under its new
value before the entry changes and taken out from under the old one after it: whichever way a reader comes, it is the
entry's change that it sees, at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

from compactory.backend import Backend
from compactory.cell import newer
from compactory.decoding import Document, Term, column, path, term
from compactory.directory import Index

__all__ = ["Secondary"]

_AS_THEY_ARE = {str, int, float, type(None)}  # values that are their own terms


class Secondary:
    """The lookup keys of a directory by an `Index`.

    Written by the table's thread, read by any. A unique index keeps every key that has the value; the one whose record
    has the newer timestamp answers (tie: higher partition, then offset), and when it goes, the next appears.
    """

    def __init__(self, index: Index, directory: str, entries: Mapping[bytes, bytes], backend: Backend) -> None:
        part = f"index {index.name}"
        self.index = index
        self.filed: MutableMapping[Term, Any] = backend.mapping(directory, part)  # unique: the key, else a set of keys
        self.rivals: MutableMapping[Term, tuple[bytes, ...]] = backend.mapping(directory, f"{part} rivals")
        self._entries = entries
        self._readers: tuple[Callable[[Document], Any], ...] = tuple(path(field) for field in index.fields)

    def term_of(self, doc: Document) -> Term | None:
        """Return what the document is filed under; None for nothing. Raises DecodeError for what can't be indexed."""
        if len(self._readers) == 1:
            value = self._readers[0](doc)
            if type(value) in _AS_THEY_ARE:
                return value
        return term(self.index.fields, [read(doc) for read in self._readers])

    def terms_of(self, docs: Sequence[Document]) -> list[Term | None]:
        """Return `term_of` of many documents."""
        if len(self.index.fields) == 1:
            values = column(self.index.fields[0], docs)
            if set(map(type, values)) <= _AS_THEY_ARE:
                return values
        return list(map(self.term_of, docs))

    def file_new(self, terms: Sequence[Term | None], names: Sequence[bytes]) -> None:
        """File entries that are new, under terms that (if the index is unique) nothing is filed under."""
        filed = self.filed
        if self.index.unique:
            filed.update(zip(terms, names, strict=True))
            filed.pop(None, None)
            return
        for wanted, name in zip(terms, names, strict=True):
            if wanted is None:
                continue
            found = filed.get(wanted)
            if found is None:
                filed[wanted] = {name}
            else:
                found.add(name)

    def term_for(self, values: Mapping[str, Any]) -> Term | None:
        """Return the term of looked-up values, by field."""
        return term(self.index.fields, [values[field] for field in self.index.fields])

    def names(self, wanted: Term | None) -> list[bytes]:
        """Return the lookup keys filed under a term, the answering one first where the index is unique. A snapshot."""
        found = self.filed.get(wanted) if wanted is not None else None
        if found is None:
            return []
        if not self.index.unique:
            return list(found)
        return [found, *(name for name in self.rivals.get(wanted, ()) if name != found)]

    def enter(self, name: bytes, cell: bytes | None, old: Term | None, new: Term | None) -> None:
        """File ``name``, whose entry is about to become ``cell``, under ``new``. Before the entry changes."""
        if new is None or new == old or cell is None:
            return
        found = self.filed.get(new)
        if found is None:
            self.filed[new] = name if self.index.unique else {name}
        elif self.index.unique:
            self._settle(new, (*self.rivals.get(new, (found,)), name), {name: cell})
        else:
            found.add(name)

    def leave(self, name: bytes, old: Term | None, new: Term | None) -> None:
        """Take ``name`` out from under ``old``. After the entry has changed."""
        if old != new:
            if old is not None:
                self._unfile(name, old)
        elif old in self.rivals:
            self._settle(old, self.rivals[old], {})  # its timestamp has changed

    def _unfile(self, name: bytes, under: Term) -> None:
        found = self.filed.get(under)
        if found is None:
            return
        if self.index.unique:
            self._settle(under, tuple(other for other in self.rivals.get(under, (found,)) if other != name), {})
            return
        found.discard(name)
        if not found:
            del self.filed[under]

    def _settle(self, under: Term, names: tuple[bytes, ...], coming: Mapping[bytes, bytes]) -> None:
        """Let these names claim a term; ``coming`` are cells that are not among the entries yet."""
        if not names:
            del self.filed[under]
        else:
            self.filed[under] = max(names, key=lambda name: newer(coming.get(name) or self._entries[name]))
        if len(names) > 1:
            self.rivals[under] = names
        else:
            self.rivals.pop(under, None)
