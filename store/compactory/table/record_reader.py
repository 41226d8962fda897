"""The parts of a record that a directory's definition asks for: document, lookup key, decoded value. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compactory.codec.decoding import Document, decoder, document_reader, field_reader, lookup_key_from
from compactory.codec.packed_record import ORIGIN_SIZE, entry_of
from compactory.directory import Directory
from compactory.errors import DecodeError

__all__ = ["RecordReader", "checked_key", "name_reader"]

_UNREAD: Document = {}


class RecordReader:
    """Reads the records of one directory. It has no state, and refers to no table.

    ``documents``        whether keys, indexes or an envelope need the JSON of a value
    ``decodes``          whether a value is decoded once when it is applied
    ``decodes_entries``  whether the user's decoder takes an `Entry`
    ``name_in``          the function that reads the lookup key out of a packed record
    """

    def __init__(self, directory: Directory[Any], *, validate: bool) -> None:
        self.documents = bool(directory.key or directory.active or directory.indexes) or directory.envelope != "none"
        self.decodes = validate and directory.decode is not bytes and not (directory.decode is dict and self.documents)
        self.decodes_entries = directory.decodes_entries
        self.name_in = name_reader(directory)
        self._topic = directory.topic
        self._field = directory.key or ""
        self._document = document_reader(directory.envelope)
        self._key_of = field_reader(directory.key) if directory.key else None
        self._active_of = field_reader(directory.active) if directory.active else None
        self._decode: Callable[[Any], Any] = decoder(directory)

    def document(self, value: bytes | None) -> Document | None:
        """Return the document in a value as far as keys and indexes need it; None means deleted."""
        if value is None:
            return None
        if not self.documents:
            return _UNREAD
        doc = self._document(value)
        if doc is not None and self._active_of is not None and self._active_of(doc) is False:
            return None
        return doc

    def document_of(self, packed: bytes) -> Document:
        """Return the document of a packed record that was read well once."""
        doc = self._document(packed[:-ORIGIN_SIZE])
        assert doc is not None
        return doc

    def name(self, topic_key: bytes, doc: Document) -> bytes:
        """Return the lookup key of a record."""
        return topic_key if self._key_of is None else lookup_key_from(self._field, self._key_of(doc))

    def fits(self, value: bytes) -> bool:
        """Return True if a value that stands for a deletion has the key field of a living one."""
        try:
            doc = self._document(value)
            return doc is not None and (self._key_of is None or bool(lookup_key_from("", self._key_of(doc))))
        except Exception:  # noqa: BLE001 (what an envelope of the user's returns may hold anything)
            return False

    def decoded(self, key: str, packed: bytes) -> Any:
        """Return what the user's decoder makes of a packed record."""
        return self._decode(entry_of(key, packed, self._topic) if self.decodes_entries else packed[:-ORIGIN_SIZE])


def name_reader(directory: Directory[Any]) -> Callable[[bytes], bytes]:
    """Return the function that reads the lookup key out of a packed record that was read well once.

    It refers to no table: a storage goes with its last reader, and does not wait for the garbage collector.
    """
    field, read = directory.key or "", document_reader(directory.envelope)
    key_of = field_reader(field)
    return lambda packed: lookup_key_from(field, key_of(read(packed[:-ORIGIN_SIZE]) or {}))


def checked_key(key: bytes | None) -> bytes:
    """Return a topic key. Raises DecodeError where there is none, UnicodeDecodeError where it is no UTF-8."""
    if key is None:
        raise DecodeError("the record has no key; entries of a compacted topic need one")
    key.decode()
    return key
