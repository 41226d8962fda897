"""Writes the entries of one table one by one, with their owners, indexes and changes."""

from __future__ import annotations

from collections.abc import Mapping

from compactory.directory import Directory
from compactory.storage.backend import DirectoryStorage
from compactory.storage.lazy_load import LazyLoad
from compactory.storage.saved_file import Bucket
from compactory.table.key_owners import EntryUpdate, KeyOwners
from compactory.table.record_reader import RecordReader
from compactory.table.secondary_index import IndexWriter, SecondaryIndex, Terms
from compactory.watch.change_log import ChangeLog

__all__ = ["EntryWriter"]


class EntryWriter:
    """Puts and removes entries. For the table's thread.

    An entry is owned by its topic key: a tombstone removes only what its own key has put. ``entries`` is lookup key →
    the packed record that answers, ``owners`` topic key → its newest packed record. Without key field in the directory
    both are one mapping. ``lazy_load`` is set while a saved file has entries that these mappings do not have yet.
    """

    def __init__(
        self,
        directory: Directory[object],
        storage: DirectoryStorage,
        indexes: Mapping[str, SecondaryIndex],
        reader: RecordReader,
        changes: ChangeLog,
    ) -> None:
        self.is_keyed = directory.key is not None
        self.entries = storage.mapping("entries")
        self.owners = storage.mapping("owners") if self.is_keyed else self.entries
        self.lazy_load: LazyLoad | None = None
        self._indexes = indexes
        self.index_writer = IndexWriter(indexes.values(), reader.document_of)
        self._lookup_key_of = reader.lookup_key_of
        self._changes = changes
        self._key_owners = KeyOwners(self.entries, storage.mapping("candidates"), reader.lookup_key_of)

    def put(self, topic_key: bytes, lookup_key: bytes, packed: bytes, terms: Terms, origin: bytes) -> None:
        """Put the packed record of a topic key under a lookup key. ``terms`` are those of its document."""
        old = self.owners.get(topic_key)
        if not self.is_keyed:
            term_changes = self.index_writer.begin(EntryUpdate(lookup_key, old, packed), terms)
            self.entries[lookup_key] = packed
            self.index_writer.finish(lookup_key, term_changes)
            self._changes.add(lookup_key, old, packed, origin)
            return
        old_lookup_key = None if old is None else self._lookup_key_of(old)
        self.owners[topic_key] = packed
        self._replace_owner(lookup_key, old if old_lookup_key == lookup_key else None, packed, terms, origin)
        if old_lookup_key is not None and old_lookup_key != lookup_key:
            self._replace_owner(old_lookup_key, old, None, (), origin)

    def remove(self, topic_key: bytes, origin: bytes) -> None:
        """Remove what a topic key has put, because of the record with this origin."""
        old = self.owners.pop(topic_key, None)
        if old is None:
            return
        if self.is_keyed:
            self._replace_owner(self._lookup_key_of(old), old, None, (), origin)
            return
        self.index_writer.finish(topic_key, self.index_writer.begin(EntryUpdate(topic_key, old, None), None))
        self._changes.add(topic_key, old, None, origin)

    def updates_by(self, topic_key: bytes, lookup_key: bytes | None, packed: bytes | None) -> list[EntryUpdate]:
        """Return the updates that `put`, or `remove` for None, would make."""
        old = self.owners.get(topic_key)
        if not self.is_keyed:
            return [EntryUpdate(topic_key, old, packed)] if packed != old else []
        old_lookup_key = None if old is None else self._lookup_key_of(old)
        updates = []
        if lookup_key is not None:
            updates.append(self._update(lookup_key, old if old_lookup_key == lookup_key else None, packed))
        if old_lookup_key is not None and old_lookup_key != lookup_key:
            updates.append(self._update(old_lookup_key, old, None))
        return [update for update in updates if update.old != update.new]

    def put_saved(self, bucket: Bucket) -> None:
        """Put records of a saved file; the mappings have none of their topic keys."""
        topic_keys, packed_records, lookup_keys, columns = bucket
        if self.is_keyed:
            self.owners.update(zip(topic_keys, packed_records, strict=True))
        if len(set(lookup_keys)) == len(lookup_keys):
            self.entries.update(zip(lookup_keys, packed_records, strict=True))
            for index, column in zip(self._indexes.values(), columns, strict=True):
                index.extend(column, lookup_keys)
            return
        for row, (lookup_key, packed) in enumerate(zip(lookup_keys, packed_records, strict=True)):
            update = self._update(lookup_key, None, packed)
            terms = tuple(column[row] for column in columns) if update.new is packed else None
            term_changes = self.index_writer.begin(update, terms)
            self._key_owners.replace(lookup_key, None, packed)
            self.index_writer.finish(lookup_key, term_changes)

    def _replace_owner(
        self, lookup_key: bytes, removed: bytes | None, added: bytes | None, terms: Terms, origin: bytes
    ) -> None:
        """Remove and add an owner of a lookup key, by the record with this origin. ``terms`` are those of ``added``."""
        if self.lazy_load is not None:
            self.lazy_load.load_lookup_key(lookup_key)
        if not self._indexes and not self._changes.recording:
            self._key_owners.replace(lookup_key, removed, added)
            return
        update = self._update(lookup_key, removed, added)
        is_answered_by_added = added is not None and update.new is added
        term_changes = self.index_writer.begin(update, terms if is_answered_by_added else None)
        self._key_owners.replace(lookup_key, removed, added)
        self.index_writer.finish(lookup_key, term_changes)
        if update.new != update.old:
            self._changes.add(lookup_key, update.old, update.new, origin)

    def _update(self, lookup_key: bytes, removed: bytes | None, added: bytes | None) -> EntryUpdate:
        if self.lazy_load is not None:
            self.lazy_load.load_lookup_key(lookup_key)
        new = self._key_owners.current_after(lookup_key, removed, added)
        return EntryUpdate(lookup_key, self.entries.get(lookup_key), new)
