"""One directory's entries: record + state → changes. Pure: no client, no clock, no lock.

One thread applies runs; any thread reads the directory storage meanwhile. Every mapping holds packed records: see
`codec.packed_record`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, cast

from compactory.cleanup import apart
from compactory.codec.decoding import Document, Term, lookup_keys_from
from compactory.codec.packed_record import ORIGIN_SIZE, first_address, origin_of, pack_origin, recency, unpack_origin
from compactory.directory import Directory
from compactory.errors import BackendCorrupt
from compactory.records import Contested, QuarantinedRecord
from compactory.storage.backend import Cut, DirectoryStorage, Frozen
from compactory.storage.filling import Filling
from compactory.storage.saved_file import Bucket
from compactory.storage.saving import SMALL_PARTS
from compactory.table.bad_records import Quarantine
from compactory.table.batch import RecordRun
from compactory.table.bulk import ColumnApplier
from compactory.table.key_owners import EntryUpdate, KeyOwners
from compactory.table.record_reader import RecordReader, checked_key
from compactory.table.secondary_index import SecondaryIndex
from compactory.watch.change import changes_of
from compactory.watch.change_log import ChangeLog

__all__ = ["Table"]

Terms = tuple[Term | None, ...]
Moves = tuple[tuple[SecondaryIndex, Term | None, Term | None], ...]
_KEEP_CONTESTED = 1000
_revisions = count()


class Table:
    """The entries of a directory.

    ``directory_storage``  where it keeps them; what readers see
    ``indexes``   what `View.find` and `View.one` go by
    ``multi_partition``  the topic has several partitions: a key may turn up in two of them (partition growth, a foreign
                  partitioner). Then the newer record timestamp wins, tombstones included; ``contested`` counts such
                  records, ``contested_keys`` lists the first
    ``topic_id``  id of the topic that it was read from, once it is served
    ``changes``   what `View.watch` reads, in the order in which records were applied
    ``projection``  the user's object that is fed each change before it is made
    ``version``   another object after each run: what was read at the present version is what there is
    ``revision``  another number after each record, unlike any other table's: while it is the same, so is what it holds

    An entry is owned by its topic key: a tombstone removes only what its own key put there. ``entries`` is lookup key →
    the packed record that answers, ``owners`` topic key → its newest one: the same mapping where there is no ``key=``.
    """

    def __init__(
        self,
        directory: Directory[Any],
        directory_storage: DirectoryStorage,
        *,
        validate: bool = True,
        strict: bool = False,
    ) -> None:
        self.directory = directory
        self.directory_storage = directory_storage
        self.indexes = {
            index.name: SecondaryIndex(index, directory_storage.postings(index.name)) for index in directory.indexes
        }
        self.quarantine = Quarantine(
            directory.topic, directory.name, directory_storage.mapping("quarantine"), strict=strict
        )
        self.version: object = object()
        self.revision = next(_revisions)
        self.topic_id: str | None = None
        self.multi_partition = False
        self.usable = False  # whether a record with a value was applied well; that of an inactive row needs its key
        self.contested = 0
        self.contested_keys: dict[bytes, Contested] = {}  # the first 1,000 keys that were
        self.changes = ChangeLog()
        self.projection = None if directory.projection is None else directory.projection()
        self._entries = directory_storage.mapping("entries")
        self._owners = directory_storage.mapping("owners") if directory.key else self._entries
        self._filling: Filling | None = None  # what a file has, and is not taken over yet
        # topic key → metadata of its tombstone, while ``multi_partition``
        self._tombstones = directory_storage.mapping("graves")
        self._keyed = directory.key is not None
        self._record_reader = reads = RecordReader(directory, validate=validate)
        self.document_of = reads.document_of
        self._key_owners = KeyOwners(self._entries, directory_storage.mapping("rivals"), reads.name_in)
        self._bulk = ColumnApplier(
            directory, self._entries, self._owners, self.indexes, self.changes, decodes=reads.decodes
        )

    def apply(self, run: RecordRun, *, loading: bool = False) -> None:
        """Apply a run. Bad records go to the quarantine; with a strict one BadRecord is raised.

        While ``loading``, without readers, records that do not depend on each other may be applied out of order,
        unless changes are recorded.
        """
        with self._alone(run.keys):
            self._apply(run, loading=loading)
        self.version = object()

    def _apply(self, run: RecordRun, *, loading: bool) -> None:
        if (
            self.projection is not None
            or (self._filling is not None and self._keyed)
            or (self._record_reader.decodes and self._record_reader.decodes_entries)
            or self.quarantine.concerns(run.keys)
            or (self._tombstones and not self._tombstones.keys().isdisjoint(run.keys))
        ):
            rest = run
        elif self._record_reader.documents and loading and not self.changes.recording:
            rest = self._bulk.apply_fresh(run)
        elif self._keyed:
            rest = run
        else:
            rest = run.where(()) if self._bulk.apply_in_order(run, multi_partition=self.multi_partition) else run
        self.usable = self.usable or len(rest.keys) < len(run.keys)
        place = first_address(run.partition.partition)
        for key, value, offset, stamp in zip(rest.keys, rest.values, rest.offsets, rest.stamps, strict=True):
            self._apply_one(key, value, pack_origin(place + offset, stamp))

    def retry(self, error: QuarantinedRecord) -> bool:
        """Apply a bad record once more; say whether it is good now. False where it is not kept."""
        if error not in self.quarantine:
            return False
        metadata = pack_origin(first_address(error.partition) + error.offset, error.timestamp_ms)
        with self._alone((error.key,)):
            self._apply_one(error.key, error.value, metadata)
        self.version = object()
        return error not in self.quarantine

    @property
    def unusable(self) -> bool:
        """Whether records with a value were read, and every one of them is bad."""
        return not self.usable and self.quarantine.outstanding > 0

    def snapshot(self) -> Frozen:
        """Return topic key → packed record as it is now, for one reader in any thread; called between two runs."""
        return self.directory_storage.frozen("owners" if self.directory.key else "entries", self._term_in)

    @property
    def filling(self) -> bool:
        """Whether a file has what is not taken over yet."""
        return self._filling is not None

    def resume(self) -> None:
        """Go on with what was saved in a file, if there is one: lookups find it at once."""
        self._filling = self.directory_storage.fill(
            self._take, self._filled, keyed=self._keyed, indexes=len(self.indexes)
        )

    def fill_apart(self, damaged: Callable[[BackendCorrupt], object]) -> None:
        """Take over what a file has, by a thread of its own, which calls ``damaged`` where the file can't be read."""
        if (filling := self._filling) is None:
            return

        def fill() -> None:
            try:
                filling.fill_all()
            except BackendCorrupt as damage:
                damaged(damage)

        apart("fill", fill)

    def frozen(self) -> Table:
        """Return the table as it is now, for readers alone; called while nothing is applied."""
        found = object.__new__(Table)
        found.__dict__ |= self.__dict__
        found.directory_storage = cast("DirectoryStorage", self.directory_storage.frozen("entries", self._term_in))
        found.quarantine = self.quarantine.frozen()
        return found

    def _term_in(self, index: str, packed: bytes) -> Term | None:
        return self.indexes[index].term_of(self.document_of(packed))

    def cut(self) -> Cut:
        """Return the table as it is now, to be saved in a file; called between two runs."""
        mapping = self.directory_storage.mapping
        return Cut(
            directory=self.directory.name,
            keyed=self._keyed,
            indexes=len(self.indexes),
            records=self.snapshot(),
            shared=frozenset(mapping("rivals")),
            parts={part: dict(mapping(part)) for part in SMALL_PARTS},
            columns=self._columns,
        )

    def _columns(self, keys: Sequence[bytes], packed_records: Sequence[bytes]) -> Bucket:
        docs = list(map(self.document_of, packed_records)) if self._keyed or self.indexes else []
        names = lookup_keys_from(self.directory.key, docs) if self.directory.key else keys
        return Bucket(keys, packed_records, names, [index.terms_of(docs) for index in self.indexes.values()])

    def _take(self, bucket: Bucket) -> None:
        """Take over records of a file, none of whose keys the table has."""
        keys, packed_records, names, columns = bucket
        if self._keyed:
            self._owners.update(zip(keys, packed_records, strict=True))
        if len(set(names)) == len(names):
            self._entries.update(zip(names, packed_records, strict=True))
            for index, column in zip(self.indexes.values(), columns, strict=True):
                index.extend(column, names)
            return
        for row, (name, packed) in enumerate(zip(names, packed_records, strict=True)):
            swap = self._swap(name, None, packed)
            terms = tuple(column[row] for column in columns) if swap.new is packed else None
            moves = self._enter(swap, terms)
            self._key_owners.settle(name, None, packed)
            self._leave(name, moves)

    def _filled(self) -> None:
        self._filling = None

    @contextmanager
    def _alone(self, keys: Iterable[bytes | None]) -> Iterator[None]:
        """Change what these topic keys have, after it was taken over, while nobody takes over anything."""
        self.revision = next(_revisions)
        filling = self._filling
        if filling is None:
            yield
            return
        with filling.lock:
            filling.fill(keys)
            yield

    def forget_tombstones(self, before_ms: int) -> None:
        """Forget tombstones older than a record time: no record older than them is still expected."""
        for key in [key for key, metadata in self._tombstones.items() if origin_of(metadata).timestamp_ms < before_ms]:
            del self._tombstones[key]

    def _apply_one(self, key: bytes | None, value: bytes | None, metadata: bytes) -> None:
        if self.multi_partition and key is not None and self._is_superseded(key, metadata):
            return
        name = None if self.directory.key else key
        doc: Document | None = None
        packed: bytes | None = None
        terms: Terms = ()
        try:
            topic_key = checked_key(key)
            doc = self._record_reader.document(value)
            if doc is not None and value is not None:
                name, packed = self._record_reader.name(topic_key, doc), value + metadata
                terms = tuple(index.term_of(doc) for index in self.indexes.values())
                if self._record_reader.decodes:
                    self._record_reader.decoded(name.decode(), packed)
        except Exception as error:  # noqa: BLE001 (a user's callable may raise anything)
            self.quarantine.add(origin_of(metadata), key, value, error, name)
            return
        if self.projection is not None and (refused := self._project(topic_key, name, packed, metadata)) is not None:
            self.quarantine.add(origin_of(metadata), key, value, refused, name)
            return
        self.usable = self.usable or doc is not None or (value is not None and self._record_reader.fits(value))
        if packed is None or name is None:
            self._remove(topic_key, metadata)
        else:
            self._put(topic_key, name, packed, terms, metadata)
        if self.quarantine and not self.quarantine.outlives(topic_key, origin_of(metadata)):
            self.quarantine.clear(topic_key)  # only now, so that a reader never finds the key neither bad nor present

    def project_kept(self) -> None:
        """Feed the projection what a disk has kept, entry by entry."""
        if self.projection is None:
            return
        for topic_key, packed in self.snapshot().pairs():
            name = self._record_reader.name_in(packed) if self._keyed else topic_key
            if self._entries.get(name) != packed:
                continue  # another owner answers
            if (refused := self._feed(packed, EntryUpdate(name, None, packed))) is not None:
                self.quarantine.add(origin_of(packed), topic_key, packed[:-ORIGIN_SIZE], refused, name)

    def _project(self, topic_key: bytes, name: bytes | None, packed: bytes | None, metadata: bytes) -> Exception | None:
        """Feed the projection the changes that a record is about to make; return what it raises."""
        old = self._owners.get(topic_key)
        if not self._keyed:
            return self._feed(metadata, EntryUpdate(topic_key, old, packed))
        gone = {} if old is None else {self._record_reader.name_in(old): old}
        names = gone if name is None else {name: None, **gone}
        return self._feed(metadata, *(self._swap(n, gone.get(n), packed if n == name else None) for n in names))

    def _feed(self, metadata: bytes, *swaps: EntryUpdate) -> Exception | None:
        assert self.projection is not None
        partition, offset, _ = unpack_origin(metadata)
        applied = [(name, old, new, metadata) for name, old, new in swaps if old != new]
        try:
            for change in changes_of(applied, self.topic_id, {partition: offset}, self._record_reader.decoded):
                self.projection.apply(change)
        except Exception as error:  # noqa: BLE001 (the user's)
            return error
        return None

    def _put(self, topic_key: bytes, name: bytes, packed: bytes, terms: Terms, metadata: bytes) -> None:
        old = self._owners.get(topic_key)
        self._tombstones.pop(topic_key, None)
        if not self._keyed:
            moves = self._enter(EntryUpdate(name, old, packed), terms)
            self._entries[name] = packed
            self._leave(name, moves)
            self.changes.add(name, old, packed, metadata)
            return
        old_name = None if old is None else self._record_reader.name_in(old)
        self._owners[topic_key] = packed
        self._settle(name, old if old_name == name else None, packed, terms, metadata)
        if old is not None and old_name is not None and old_name != name:
            self._settle(old_name, old, None, (), metadata)

    def _remove(self, topic_key: bytes, metadata: bytes) -> None:
        if self.multi_partition:
            self._tombstones[topic_key] = metadata
        old = self._owners.pop(topic_key, None)
        if old is None:
            return
        if not self._keyed:
            self._leave(topic_key, self._enter(EntryUpdate(topic_key, old, None), None))
            self.changes.add(topic_key, old, None, metadata)
        else:
            self._settle(self._record_reader.name_in(old), old, None, (), metadata)

    def _settle(self, name: bytes, gone: bytes | None, packed: bytes | None, terms: Terms, metadata: bytes) -> None:
        """Take ``gone`` away from the owners of a lookup key, and add ``packed``, whose index terms are ``terms``.

        ``metadata`` is that of the record that demands it.
        """
        if self._filling is not None:
            self._filling.fill_name(name)
        if not self.indexes and not self.changes.recording:
            self._key_owners.settle(name, gone, packed)
            return
        swap = self._swap(name, gone, packed)
        moves = self._enter(swap, terms if packed is not None and swap.new is packed else None)
        self._key_owners.settle(name, gone, packed)
        self._leave(name, moves)
        if swap.new != swap.old:
            self.changes.add(name, swap.old, swap.new, metadata)

    def _swap(self, name: bytes, gone: bytes | None, packed: bytes | None) -> EntryUpdate:
        """Return what `_settle` would change."""
        if self._filling is not None:
            self._filling.fill_name(name)
        return EntryUpdate(name, self._entries.get(name), self._key_owners.current_for(name, gone, packed))

    def _enter(self, swap: EntryUpdate, terms: Terms | None) -> Moves:
        """Prepare the indexes for a swap; ``terms`` are those of the new packed record where they are known already."""
        if not self.indexes or swap.old == swap.new:
            return ()
        old_terms = self._terms_of(swap.old)
        new_terms = self._terms_of(swap.new) if terms is None else terms
        moves = tuple(zip(self.indexes.values(), old_terms, new_terms, strict=True))
        for index, old, new in moves:
            index.enter(swap.name, old, new)
        return moves

    def _leave(self, name: bytes, moves: Moves) -> None:
        """Tidy the indexes up after the swap."""
        for index, old, new in moves:
            index.leave(name, old, new)

    def _terms_of(self, packed: bytes | None) -> Terms:
        if packed is None:
            return (None,) * len(self.indexes)
        doc = self.document_of(packed)
        return tuple(index.term_of(doc) for index in self.indexes.values())

    def _is_superseded(self, topic_key: bytes, metadata: bytes) -> bool:
        known = self._owners.get(topic_key) or self._tombstones.get(topic_key)
        if known is None or origin_of(known).partition == origin_of(metadata).partition:
            return False
        self._note_contested(topic_key, origin_of(metadata).partition, origin_of(known).partition)
        return recency(known) > recency(metadata)

    def _note_contested(self, topic_key: bytes, partition: int, other: int) -> None:
        self.contested += 1
        if topic_key in self.contested_keys or len(self.contested_keys) < _KEEP_CONTESTED:
            self.contested_keys[topic_key] = Contested(self.directory.name, topic_key, partition, other)
