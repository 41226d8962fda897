"""The table of one directory: applies records to its entries. Pure: no client, no clock, no lock.

One thread applies record runs; any thread reads the directory storage meanwhile. Every mapping has packed records: see
`codec.packed_record`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from compactory.codec.decoding import Document, Term, lookup_keys_from
from compactory.codec.packed_record import ORIGIN_SIZE, first_address, origin_of, pack_origin, unpack_origin
from compactory.directory import Directory
from compactory.errors import BackendCorrupt
from compactory.records import QuarantinedRecord
from compactory.storage.backend import DirectoryStorage, ReadSnapshot, SaveSnapshot
from compactory.storage.file_saver import SMALL_PARTS
from compactory.storage.saved_file import Bucket
from compactory.table.bad_records import Quarantine
from compactory.table.batch import RecordRun
from compactory.table.column_applier import ColumnApplier
from compactory.table.entry_writer import EntryWriter
from compactory.table.key_owners import EntryUpdate, PartitionConflicts
from compactory.table.record_reader import RecordReader, checked_key
from compactory.table.secondary_index import SecondaryIndex, Terms
from compactory.threads import start_thread
from compactory.watch.change import changes_of
from compactory.watch.change_log import ChangeLog

__all__ = ["ReadableTable", "Table", "TableSnapshot"]

_revisions = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """The parts of a `Table` that lookups read, as they were at one moment. For any thread."""

    directory: Directory[Any]
    directory_storage: ReadSnapshot
    indexes: Mapping[str, SecondaryIndex]
    bad_lookup_keys: Mapping[bytes, int]
    document_of: Callable[[bytes], Document]
    topic_id: str | None
    multi_partition: bool
    projection: Any
    version: object


class Table:
    """The entries of a directory.

    ``directory_storage``  keeps the entries; what readers see
    ``indexes``          the indexes by name, for `View.find` and `View.one`
    ``bad_lookup_keys``  lookup key → number of its topic keys whose newest record is bad
    ``multi_partition``  the topic has several partitions, so that a key may occur in two of them; see ``conflicts``
    ``topic_id``         id of the topic that was read, once it is served
    ``changes``          what `View.watch` reads, in the order in which records were applied
    ``projection``       the user's object, which gets each change before it is applied
    ``has_good_record``  a record with a value was applied; that of an inactive row counts if it has the key field
    ``version``          another object after each run: values that were read at the same version are still current
    ``revision``         another number after each record, in all tables: equal revisions mean equal entries
    """

    def __init__(
        self,
        directory: Directory[Any],
        directory_storage: DirectoryStorage,
        *,
        validate: bool = True,
        strict: bool = False,
    ) -> None:
        mapping = directory_storage.mapping
        self.directory = directory
        self.directory_storage = directory_storage
        self.indexes = {
            index.name: SecondaryIndex(index, directory_storage.postings(index.name)) for index in directory.indexes
        }
        self.quarantine = Quarantine(directory.topic, directory.name, mapping("quarantine"), strict=strict)
        self.bad_lookup_keys = self.quarantine.bad_lookup_keys
        self.version: object = object()
        self.revision = next(_revisions)
        self.topic_id: str | None = None
        self.multi_partition = False
        self.has_good_record = False
        self.changes = ChangeLog()
        self.projection = None if directory.projection is None else directory.projection()
        self._reader = reader = RecordReader(directory, validate=validate)
        self.document_of = reader.document_of
        self._writer = writer = EntryWriter(directory, directory_storage, self.indexes, reader, self.changes)
        self.conflicts = PartitionConflicts(directory.name, writer.owners, mapping("tombstones"))
        self._columns = ColumnApplier(
            directory, writer.entries, writer.owners, self.indexes, self.changes, decodes_values=reader.decodes_values
        )

    def apply(self, run: RecordRun, *, loading: bool = False) -> None:
        """Apply a run. Bad records go to the quarantine; a strict one raises BadRecord.

        While ``loading``, without readers, independent records may be applied first, unless changes are recorded.
        """
        with self._exclusive(run.keys):
            remaining = self._apply_columns(run, loading=loading) if self._fits_columns(run) else run
            if remaining is None or len(remaining.keys) < len(run.keys):
                self.has_good_record = True
            if remaining is not None:
                self._apply_records(remaining)
        self.version = object()

    def retry(self, bad: QuarantinedRecord) -> bool:
        """Apply a bad record once more. Return True if it is good; False if it is bad, or not in the quarantine."""
        if bad not in self.quarantine:
            return False
        with self._exclusive((bad.key,)):
            origin = pack_origin(first_address(bad.partition) + bad.offset, bad.timestamp_ms)
            self._apply_record(bad.key, bad.value, origin)
        self.version = object()
        return bad not in self.quarantine

    @property
    def has_only_bad_records(self) -> bool:
        """True if records with a value were read, and all of them are bad."""
        return not self.has_good_record and self.quarantine.outstanding > 0

    def snapshot(self) -> ReadSnapshot:
        """Return topic key → packed record at this moment, for one reader in any thread. Called between two runs."""
        return self.directory_storage.snapshot("owners" if self._writer.is_keyed else "entries", self._term_of_packed)

    def lookup_snapshot(self) -> TableSnapshot:
        """Return the table at this moment, for lookups. Called between two runs."""
        return TableSnapshot(
            directory=self.directory,
            directory_storage=self.directory_storage.snapshot("entries", self._term_of_packed),
            indexes=self.indexes,
            bad_lookup_keys=self.bad_lookup_keys.copy(),
            document_of=self.document_of,
            topic_id=self.topic_id,
            multi_partition=self.multi_partition,
            projection=self.projection,
            version=self.version,
        )

    def save_snapshot(self) -> SaveSnapshot:
        """Return the table at this moment, to be saved in a file. Called between two runs."""
        mapping = self.directory_storage.mapping
        return SaveSnapshot(
            directory=self.directory.name,
            keyed=self._writer.is_keyed,
            indexes=len(self.indexes),
            records=self.snapshot(),
            shared=frozenset(mapping("candidates")),
            parts={part: dict(mapping(part)) for part in SMALL_PARTS},
            columns=self._bucket_of,
        )

    @property
    def is_loading(self) -> bool:
        """True while a saved file has entries that are not in memory yet."""
        return self._writer.lazy_load is not None

    def resume(self) -> None:
        """Serve the entries of a saved file, if there is one: lookups find them at once."""
        self._writer.lazy_load = self.directory_storage.lazy_load(
            self._writer.put_saved, self._end_lazy_load, keyed=self._writer.is_keyed, indexes=len(self.indexes)
        )

    def start_lazy_load(self, report_damage: Callable[[BackendCorrupt], object]) -> None:
        """Read a saved file into memory in another thread, which calls ``report_damage`` for a damaged file."""
        lazy_load = self._writer.lazy_load
        if lazy_load is None:
            return

        def fill() -> None:
            try:
                lazy_load.load_all()
            except BackendCorrupt as damage:
                report_damage(damage)

        start_thread("fill", fill)

    def project_stored_entries(self) -> None:
        """Give the projection the entries that the backend has kept, one by one."""
        if self.projection is None:
            return
        for topic_key, packed in self.snapshot().pairs():
            lookup_key = self._reader.lookup_key_of(packed) if self._writer.is_keyed else topic_key
            if self._writer.entries.get(lookup_key) != packed:
                continue  # another owner answers
            problem = self._project(packed, [EntryUpdate(lookup_key, None, packed)])
            if problem is not None:
                self.quarantine.add(origin_of(packed), topic_key, packed[:-ORIGIN_SIZE], problem, lookup_key)

    def _fits_columns(self, run: RecordRun) -> bool:
        """Return False if each record of a run needs a closer look."""
        tombstones = self.conflicts.tombstones
        return not (
            self.projection is not None
            or (self._writer.lazy_load is not None and self._writer.is_keyed)
            or (self._reader.decodes_values and self._reader.decodes_entries)
            or self.quarantine.has_any(run.keys)
            or (tombstones and not tombstones.keys().isdisjoint(run.keys))
        )

    def _apply_columns(self, run: RecordRun, *, loading: bool) -> RecordRun | None:
        """Apply records column by column. Return the remaining ones, None if there are none."""
        if self._reader.needs_documents and loading and not self.changes.recording:
            return self._columns.apply_new(run)
        if self._writer.is_keyed or not self._columns.apply_in_order(run, multi_partition=self.multi_partition):
            return run
        return None

    def _apply_records(self, run: RecordRun) -> None:
        base = first_address(run.partition.partition)
        for key, value, offset, timestamp in zip(run.keys, run.values, run.offsets, run.timestamps, strict=True):
            self._apply_record(key, value, pack_origin(base + offset, timestamp))

    def _apply_record(self, key: bytes | None, value: bytes | None, origin: bytes) -> None:
        if self.multi_partition and key is not None and self.conflicts.is_superseded(key, origin):
            return
        lookup_key = None if self._writer.is_keyed else key
        packed: bytes | None = None
        terms: Terms = ()
        try:
            topic_key = checked_key(key)
            doc = self._reader.document(value)
            if doc is not None and value is not None:
                lookup_key, packed = self._reader.lookup_key(topic_key, doc), value + origin
                terms = self._writer.index_writer.terms_of(doc)
                if self._reader.decodes_values:
                    self._reader.decode(lookup_key.decode(), packed)
        except Exception as error:  # noqa: BLE001 (a user's callable may raise anything)
            self.quarantine.add(origin_of(origin), key, value, error, lookup_key)
            return
        if self.projection is not None:
            problem = self._project(origin, self._writer.updates_by(topic_key, lookup_key, packed))
            if problem is not None:
                self.quarantine.add(origin_of(origin), key, value, problem, lookup_key)
                return
        if packed is not None or (value is not None and self._reader.has_lookup_key(value)):
            self.has_good_record = True
        self._write(topic_key, lookup_key, packed, terms, origin)
        if self.quarantine and not self.quarantine.outlives(topic_key, origin_of(origin)):
            self.quarantine.clear(topic_key)  # only now, so that a reader never finds the key neither bad nor present

    def _write(
        self, topic_key: bytes, lookup_key: bytes | None, packed: bytes | None, terms: Terms, origin: bytes
    ) -> None:
        tombstones = self.conflicts.tombstones
        if packed is not None and lookup_key is not None:
            tombstones.pop(topic_key, None)
            self._writer.put(topic_key, lookup_key, packed, terms, origin)
            return
        if self.multi_partition:
            tombstones[topic_key] = origin
        self._writer.remove(topic_key, origin)

    def _project(self, record: bytes, updates: Sequence[EntryUpdate]) -> Exception | None:
        """Give the projection the changes that a record is about to make. Return the error that it raises."""
        assert self.projection is not None
        partition, offset, _ = unpack_origin(record)
        applied = [(update.lookup_key, update.old, update.new, record) for update in updates]
        try:
            for change in changes_of(applied, self.topic_id, {partition: offset}, self._reader.decode):
                self.projection.apply(change)
        except Exception as error:  # noqa: BLE001 (of the user's projection)
            return error
        return None

    def _term_of_packed(self, index: str, packed: bytes) -> Term | None:
        return self.indexes[index].term_of(self.document_of(packed))

    def _bucket_of(self, topic_keys: Sequence[bytes], packed_records: Sequence[bytes]) -> Bucket:
        docs = list(map(self.document_of, packed_records)) if self.directory.key or self.indexes else []
        lookup_keys = lookup_keys_from(self.directory.key, docs) if self.directory.key else topic_keys
        return Bucket(
            topic_keys, packed_records, lookup_keys, [index.terms_of(docs) for index in self.indexes.values()]
        )

    def _end_lazy_load(self) -> None:
        self._writer.lazy_load = None

    @contextmanager
    def _exclusive(self, topic_keys: Iterable[bytes | None]) -> Iterator[None]:
        """Hold the lock of a saved file that is being read, after the entries of these topic keys were read."""
        self.revision = next(_revisions)
        lazy_load = self._writer.lazy_load
        if lazy_load is None:
            yield
            return
        with lazy_load.lock:
            lazy_load.load_keys(topic_keys)
            yield


ReadableTable = Table | TableSnapshot
"""What lookups read."""
