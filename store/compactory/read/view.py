"""The read side of a directory."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any, Generic, TypeVar, cast, overload

from compactory.codec.decoding import decoder, encode_lookup_key, read_only_decoder
from compactory.codec.packed_record import ORIGIN_SIZE, entry_of, origin_of, unpack_origin
from compactory.directory import Directory
from compactory.errors import BadRecord, ConfigError, DecodeError, StaleData, UnknownIndex
from compactory.read.index_lookup import Pair, index_named, index_over, matching, matching_between
from compactory.read.iteration import IndexView, Items, Values
from compactory.read.served import Served
from compactory.records import Entry
from compactory.storage.ordered_keys import bounds
from compactory.table.table import ReadableTable
from compactory.watch.change import Cursor
from compactory.watch.watch import Watch

__all__ = ["View"]

T = TypeVar("T")
D = TypeVar("D")
_VALUE = slice(None, -ORIGIN_SIZE)
_SPARE = 1000  # decoded values of deleted entries that may stay in memory
_ABSENT: Any = object()


class View(Mapping[str, T], Generic[T]):
    """The entries of a directory: a read-only mapping from lookup key to decoded value.

    Reads are plain memory reads: they never wait for Kafka, may come from any thread, and see each entry as it was
    before or after a record, never in between. Each read decodes afresh, so the value is the caller's own, unless the
    directory says ``cache_decoded``. The view stays valid while the store runs, whatever happens to the data behind it.

    A read may demand freshness: ``max_age`` is in seconds, and the directory's ``on_stale`` says whether older data is
    served or StaleData raised. `within` gives a view with such a limit for all its reads.

    Reads raise NotReady before the store is ready, StoreFailed if it never got there, StoreClosed afterwards. If
    a key's newest record is bad and the key has no good value, every read raises BadRecord (a KeyError), also
    ``get`` with a default: "can't tell" is not "absent". ``in`` says False for it: there is no value.
    Iteration goes over the keys as they were when it began and leaves out entries that are deleted meanwhile.
    """

    def __init__(
        self, directory: Directory[T], served: Served, max_age: float | None = None, *, checked: bool = False
    ) -> None:
        self.directory = directory
        self._served = served
        self._checked = checked  # whether values were read once when they were applied
        self._max_age = directory.max_age if max_age is None else max_age
        self._decode: Callable[[Any], T] = decoder(directory, checked=checked)
        self._shared: dict[str, tuple[object, bytes, T]] = {}  # key → version when it was read, packed record, value
        self._entries = directory.decodes_entries
        self._plain = self._max_age is None and not directory.cache_decoded and not self._entries
        self._shares = self._max_age is None and directory.cache_decoded
        if directory.cache_decoded and directory.decode is dict:
            self._decode = read_only_decoder(self._decode)

    def __repr__(self) -> str:
        return f"<View {self.directory.name!r}>"

    def __getitem__(self, key: str) -> T:
        served = self._served
        if self._plain and served.open:  # the fast path calls no function of ours: each costs as much as the lookup
            try:
                packed = served.entries.get(key.encode())
                if packed is not None:
                    return self._decode(packed[_VALUE])
            except Exception:  # noqa: BLE001, S110 (the slow path says what is wrong)
                pass
        elif self._shares and served.open:
            shared = self._shared.get(key)
            if shared is not None and shared[0] is served.table.version:
                return shared[2]
        value = self._look_up_slowly(key)
        if value is _ABSENT:
            raise KeyError(key)
        return value

    @overload
    def get(self, key: str, /, *, max_age: float | None = None) -> T | None: ...
    @overload
    def get(self, key: str, /, default: T | D, *, max_age: float | None = None) -> T | D: ...
    def get(self, key: str, /, default: Any = None, *, max_age: float | None = None) -> Any:
        """Return the value, or ``default`` if the key is absent.

        Raises BadRecord if the newest record can't be decoded and no good value is known, StaleData.
        """
        if max_age is not None:
            self._demand(max_age)
        served = self._served
        if self._plain and served.open:
            try:
                packed = served.entries.get(key.encode())
                if packed is not None:
                    return self._decode(packed[_VALUE])
            except Exception:  # noqa: BLE001, S110 (as above)
                pass
        elif self._shares and served.open:
            shared = self._shared.get(key)
            if shared is not None and shared[0] is served.table.version:
                return shared[2]
        value = self._look_up_slowly(key)
        return default if value is _ABSENT else value

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and encode_lookup_key(key) in self._table.directory_storage.entries

    def __len__(self) -> int:
        return len(self._table.directory_storage.entries)

    def __iter__(self) -> Iterator[str]:
        for name in self._table.directory_storage.reading().all_keys():
            yield name.decode()

    def items(self) -> ItemsView[str, T]:
        """Return the keys and values; see the class for what iteration promises."""
        return Items(self)

    def values(self) -> ValuesView[T]:
        """Return the values; see the class for what iteration promises."""
        return Values(self)

    def snapshot(self) -> Iterator[tuple[str, T]]:
        """Return keys and decoded values of the entries that exist now, to iterate over."""
        return self._pairs(None, None)

    def of(self, served: Served) -> View[T]:
        """Return a view that reads another table, in the same way."""
        return View(self.directory, served, self._max_age, checked=self._checked)

    def within(self, max_age: float) -> View[T]:
        """Return a view of the same entries; all its reads demand data that is at most this many seconds old."""
        if not max_age > 0:
            raise ConfigError(f"max_age must be a number of seconds above 0, not {max_age!r}")
        return View(self.directory, self._served, max_age, checked=self._checked)

    def watch(self, since: Cursor | None = None, *, timeout: float = 5.0) -> Watch[T]:
        """Return the changes of the directory: from a cursor on, or from now on.

            with view.watch() as changes:
                for change in changes:
                    print(change.kind, change.key, change.old, change.new)

        To miss nothing, begin the watch, then read the directory. A cursor (of a change, a watch or WatchExpired) works
        in any process that keeps the changes since: from its first watch on, or from its start on with the directory's
        ``keep_changes``. A restart forgets the changes that the former process applied. On disk it keeps those that it
        reads itself; in memory none from before the store was ready.
        A cursor is good for as long as the topic keeps tombstones (``delete.retention.ms``, a day by default).

        Raises WatchExpired, whose cursor is of now; WaitTimeout where the reader is at something else for ``timeout``
        seconds; NotReady, StoreFailed, StoreClosed.
        """
        self._refuse_closed()
        cursor: Any = since
        if not isinstance(cursor, Cursor | None):
            kind = type(cursor).__name__
            raise ConfigError(f"a cursor is needed, not {kind}; a cursor's text becomes one by Cursor.parse(text)")
        served = self._served
        table = served.recorded(timeout)
        return Watch(table.changes, table.topic_id, since, self._decoded, served.cursor, served.refusal)

    @property
    def projection(self) -> Any:
        """The object that the directory's ``projection`` made; another one after the topic was read anew.

        It holds every change up to the store's positions. Readers in other threads may see it between two changes. None
        without one. Raises NotReady, StoreFailed, StoreClosed, StaleData.
        """
        return self._table.projection

    @property
    def age(self) -> float:
        """The seconds since all partitions were last known to be at their end; infinite before that.

        At most some seconds while Kafka is reachable and nothing is behind.
        """
        return self._served.age()

    @property
    def stale_reads(self) -> int:
        """The number of reads that demanded fresher data and were still answered from older data."""
        return self._served.stale_reads

    def get_many(self, keys: Iterable[str], *, max_age: float | None = None) -> dict[str, T]:
        """Return the values of the keys that are present. Raises BadRecord as ``view[key]`` does, StaleData."""
        if isinstance(keys, str):  # type checkers take it for the keys of its letters
            raise TypeError(f"get_many takes several keys, such as [{keys!r}], and not one text")
        if max_age is not None:
            self._demand(max_age)
        values = ((key, self.get(key, _ABSENT)) for key in keys)
        return {key: value for key, value in values if value is not _ABSENT}

    def raw(self, key: str, *, max_age: float | None = None) -> bytes:
        """Return the value's bytes exactly as they are in the topic. Raises KeyError, BadRecord, StaleData."""
        return self._present(self._name(key), max_age)[1][_VALUE]

    def entry(self, key: str, *, max_age: float | None = None) -> Entry:
        """Return the entry with its bytes, partition, offset and timestamp. Raises KeyError, BadRecord, StaleData."""
        return self._entry(key, self._present(self._name(key), max_age)[1])

    def record(self, name: bytes) -> tuple[bytes, int, int, str | None]:
        """Return value, partition, offset and topic id of the record of the key with these UTF-8 bytes.

        Like `entry`, with the topic's id and without its cost, for callers that count microseconds. Raises KeyError,
        BadRecord.
        """
        table, packed = self._present(name)
        partition, offset, _ = unpack_origin(packed)
        return packed[_VALUE], partition, offset, table.topic_id

    def prefix(self, prefix: str) -> Iterator[tuple[str, T]]:
        """Yield the entries whose key begins with this, as `range` does."""
        return self._pairs(*bounds(prefix))

    def range(self, lo: str = "", hi: str | None = None) -> Iterator[tuple[str, T]]:
        """Yield keys and values from ``lo`` to before ``hi`` (None: to the end), in the order of their UTF-8 bytes.

        That is the order of code points, and of Python's strings. A page: ``islice(view.range(lo), 100)``; the next one
        begins at the last key followed by a NUL. Entries that are deleted meanwhile are left out; entries that are
        added meanwhile may be left out. In memory the first range sorts the keys, half a second a million, and keeps
        them in order from then on.
        """
        return self._pairs(encode_lookup_key(lo), None if hi is None else encode_lookup_key(hi))

    def keys_from(self, last_key: str | None = None, prefix: str = "") -> Iterator[str]:
        """Yield the keys after ``last_key`` that begin with ``prefix``, in order, for pages."""
        return (name.decode() for name in self._table.directory_storage.reading().range(*_span(last_key, prefix)))

    def find_entries_from(
        self, fields: Mapping[str, Any], last_key: str | None = None, prefix: str = ""
    ) -> Iterator[Entry]:
        """Yield the entries of `find_entries`, of the keys that `keys_from` yields. A page costs only its own entries.

        In memory the first page of a value that many entries have sorts their keys, and keeps them in order from then
        on. In a snapshot a page also costs as much as the changes since. Raises UnknownIndex.
        """
        table = self._table
        start, stop = _span(last_key, prefix)
        for name, packed in matching_between(table, index_over(table, fields), fields, start, stop):
            yield self._entry(name.decode(), packed)
        self._refuse_closed()  # else it would look as if that had been all

    def sizes(self) -> dict[int, int]:
        """Return how many entries came from each partition; memory counts them where the topic has several."""
        table = self._table
        return table.directory_storage.sizes() if table.multi_partition else {0: len(table.directory_storage.entries)}

    def one(self, **fields: Any) -> T | None:
        """Return the value that a unique index finds, or None.

        ``one(acquirerId="A1")``; for a nested field ``one(**{"address.city": "Riga"})``. Raises UnknownIndex if no
        unique index covers exactly these fields.
        """
        index = index_over(self._table, fields).index
        if not index.unique:
            raise UnknownIndex(f"index {index.name!r} of {self.directory.name!r} is not unique; use find()")
        return next(iter(self.find(**fields)), None)

    def find(self, **fields: Any) -> list[T]:
        """Return all values with these values in an indexed field (or fields), in the order of their keys.

        Raises UnknownIndex if no index covers exactly these fields.
        """
        return [self._decoded(name.decode(), packed) for name, packed in self._matching(fields)]

    def find_entries(self, **fields: Any) -> list[Entry]:
        """Return all entries with these values in an indexed field (or fields), in the order of their keys.

        Raises UnknownIndex if no index covers exactly these fields.
        """
        return [self._entry(name.decode(), packed) for name, packed in self._matching(fields)]

    def may_have(self, index: str, term: Any) -> list[bytes]:
        """Return the keys that the index of this name files under a term, without reading the entries.

        Some may have another value by now; none that has it is missing.
        """
        return self._table.directory_storage.reading().keys_of_term(index, term)

    def packed(self, name: bytes) -> bytes | None:
        """Return the last good packed record of the key with these UTF-8 bytes, None where there is none."""
        return self._table.directory_storage.entries.get(name)

    def index(self, name: str) -> IndexView:
        """Return an index as a mapping: indexed value (a tuple for several fields) → value, or list of values.

        Raises UnknownIndex.
        """
        index = index_named(self._table, name).index
        return IndexView(
            index, lambda fields: self.find(**fields), lambda: self._table.directory_storage.reading().terms(name)
        )

    def _matching(self, fields: Mapping[str, Any]) -> list[Pair]:
        """Return the entries that an index has under these values, in the order of their keys."""
        table = self._table
        pairs = matching(table, index_over(table, fields), fields)
        self._refuse_closed()
        return sorted(pairs)

    @property
    def _table(self) -> ReadableTable:
        self._refuse_closed()
        if self._max_age is not None:
            self._demand(self._max_age)
        return self._served.table

    def _refuse_closed(self) -> None:
        """Raise StoreClosed where the store was closed during the lookup: a missing entry may have gone with it."""
        if not self._served.open:
            raise self._served.refusal()

    def _demand(self, max_age: float) -> None:
        """Raise StaleData, or count, where the data is older than that."""
        age = self._served.age()
        if age <= max_age:
            return
        if self.directory.on_stale == "raise":
            problem = f"directory {self.directory.name!r} was last known to be current {age:.1f} s ago"
            raise StaleData(f"{problem}; at most {max_age:g} s was demanded", age, max_age)
        self._served.stale_reads += 1

    def _look_up_slowly(self, key: str) -> T:
        """Return the value, or _ABSENT; raises what is wrong. Shares values if the directory says so."""
        served = self._served
        version = served.table.version if served.open else None  # first: what is read after it is at least as new
        table, packed = self._looked_up(self._name(key))
        if packed is None:
            return cast("T", _ABSENT)
        if not self.directory.cache_decoded:
            return self._decoded(key, packed)
        shared, entries = self._shared, table.directory_storage.entries
        earlier = shared.get(key)
        value = earlier[2] if earlier is not None and earlier[1] == packed else self._decoded(key, packed)
        shared[key] = (version, packed, value)
        if len(shared) > len(entries) + _SPARE:
            for deleted_key in [shared_key for shared_key in list(shared) if shared_key.encode() not in entries]:
                shared.pop(deleted_key, None)
        return value

    def _pairs(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[str, T]]:
        reading = self._table.directory_storage.reading()
        return ((key := name.decode(), self._decoded(key, packed)) for name, packed in reading.pairs(start, stop))

    def _decoded(self, key: str, packed: bytes) -> T:
        try:
            return self._decode(self._entry(key, packed) if self._entries else packed[_VALUE])
        except Exception as error:
            where = origin_of(packed)
            place = f"{self.directory.topic} partition {where.partition} offset {where.offset}"
            raise DecodeError(f"the value at {place} can't be decoded: {type(error).__name__}") from error

    def _name(self, key: str) -> bytes:
        if not isinstance(key, str):
            raise TypeError(f"keys of {self.directory.name!r} are text, not {type(key).__name__}")
        return encode_lookup_key(key)

    def _present(self, name: bytes, max_age: float | None = None) -> tuple[ReadableTable, bytes]:
        """Return the packed record of a key, and the table that has it. Raises KeyError, BadRecord, StaleData."""
        table, packed = self._looked_up(name, max_age)
        if packed is None:
            raise KeyError(name.decode(errors="surrogateescape"))  # bytes that are no text are no key
        return table, packed

    def _looked_up(self, name: bytes, max_age: float | None = None) -> tuple[ReadableTable, bytes | None]:
        if max_age is not None:
            self._demand(max_age)
        table = self._table  # once: another may be served in the next moment, of another topic
        bad = name in table.bad_lookup_keys
        packed = table.directory_storage.entries.get(name)
        if packed is None:
            if bad:
                key = name.decode(errors="surrogateescape")
                raise BadRecord(f"the newest record of {key!r} in {self.directory.name!r} is bad; see quarantine()")
            self._refuse_closed()
        return table, packed

    def _entry(self, key: str, packed: bytes) -> Entry:
        return entry_of(key, packed, self.directory.topic)


def _span(last_key: str | None, prefix: str) -> tuple[bytes, bytes | None]:
    """Return the range of the keys after ``last_key`` that begin with ``prefix``; its end is not included."""
    start, stop = bounds(prefix)
    return (start if last_key is None else max(start, encode_lookup_key(last_key) + b"\0")), stop
