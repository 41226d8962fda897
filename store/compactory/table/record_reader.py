"""Reads the parts of a record that a directory's definition needs: document, lookup key, decoded value. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compactory.codec.decoding import Document, decoder, document_reader, field_reader, lookup_key_from
from compactory.codec.packed_record import ORIGIN_SIZE, entry_of
from compactory.directory import Directory
from compactory.errors import DecodeError

__all__ = ["RecordReader", "checked_key"]

_UNREAD: Document = {}


class RecordReader:
    """Reads the records of one directory. Refers to no table, so that one is freed without the garbage collector.

    ``needs_documents``  keys, indexes or an envelope need the JSON of a value
    ``decodes_values``   a value is decoded once when it is applied
    ``decodes_entries``  the user's decoder takes an `Entry`
    """

    def __init__(self, directory: Directory[Any], *, validate: bool) -> None:
        has_fields = bool(directory.key or directory.active or directory.indexes)
        self.needs_documents = has_fields or directory.envelope != "none"
        is_checked_object = directory.decode is dict and self.needs_documents
        self.decodes_values = validate and directory.decode is not bytes and not is_checked_object
        self.decodes_entries = directory.decodes_entries
        self._topic = directory.topic
        self._field = directory.key or ""
        self._read_document = document_reader(directory.envelope)
        self._read_key = field_reader(directory.key) if directory.key else None
        self._read_active = field_reader(directory.active) if directory.active else None
        self._decode: Callable[[Any], Any] = decoder(directory)

    def document(self, value: bytes | None) -> Document | None:
        """Return the document of a value, empty if nothing needs it; None for a deletion."""
        if value is None:
            return None
        if not self.needs_documents:
            return _UNREAD
        doc = self._read_document(value)
        if doc is not None and self._read_active is not None and self._read_active(doc) is False:
            return None
        return doc

    def document_of(self, packed: bytes) -> Document:
        """Return the document of a packed record, which was read before without an error."""
        doc = self._read_document(packed[:-ORIGIN_SIZE])
        assert doc is not None
        return doc

    def lookup_key(self, topic_key: bytes, doc: Document) -> bytes:
        """Return the lookup key of a record."""
        return topic_key if self._read_key is None else lookup_key_from(self._field, self._read_key(doc))

    def lookup_key_of(self, packed: bytes) -> bytes:
        """Return the lookup key of a packed record with a key field, which was read before without an error."""
        assert self._read_key is not None
        return lookup_key_from(self._field, self._read_key(self._read_document(packed[:-ORIGIN_SIZE]) or _UNREAD))

    def has_lookup_key(self, value: bytes) -> bool:
        """Return True if the value of an inactive row has the key field that a live entry needs."""
        try:
            doc = self._read_document(value)
            return doc is not None and (self._read_key is None or bool(lookup_key_from("", self._read_key(doc))))
        except Exception:  # noqa: BLE001 (a user's envelope may return or raise anything)
            return False

    def decode(self, key: str, packed: bytes) -> Any:
        """Return the decoded value of a packed record. Raises whatever the user's decoder raises."""
        return self._decode(entry_of(key, packed, self._topic) if self.decodes_entries else packed[:-ORIGIN_SIZE])


def checked_key(key: bytes | None) -> bytes:
    """Return a topic key. Raises DecodeError if there is none, UnicodeDecodeError if it is not UTF-8."""
    if key is None:
        raise DecodeError("the record has no key; entries of a compacted topic need one")
    key.decode()
    return key
