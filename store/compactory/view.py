"""The read side of a directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, overload

from compactory.backend import Reading
from compactory.cell import TRAILER, newer, origin, unpack
from compactory.decoding import decoder
from compactory.directory import Directory
from compactory.errors import BadRecord, CompactoryError, DecodeError, UnknownIndex
from compactory.iteration import IndexView, Items, Values
from compactory.records import Entry
from compactory.secondary import Secondary
from compactory.table import Table

__all__ = ["Served", "View"]

T = TypeVar("T")
D = TypeVar("D")


class Served:
    """What a view reads: a table, once the store is ready. The store opens, closes and swaps it."""

    __slots__ = ("age", "entries", "open", "refusal", "table")

    def __init__(self, refusal: Callable[[], CompactoryError], age: Callable[[], float]) -> None:
        self.open = False
        self.refusal = refusal
        self.age = age  # seconds since all of it was last known to be applied to the end of the log
        self.table: Table
        self.entries: Mapping[bytes, bytes]

    def swap(self, table: Table) -> None:
        """Answer from this table from now on."""
        self.table = table
        self.entries = table.shelf.entries  # of the table, one step nearer: a lookup counts nanoseconds


class View(Mapping[str, T], Generic[T]):
    """The entries of a directory: a read-only mapping from lookup key to decoded value.

    Reads are plain memory reads: they never wait for Kafka, may come from any thread, and see each entry as it was
    before or after a record, never in between. Each read decodes afresh, so the value is the caller's own. The view
    stays valid while the store runs, whatever happens to the data behind it.

    Reads raise NotReady before the store is ready, StoreFailed if it never got there, StoreClosed afterwards. A key
    whose newest record is bad and of which no good value is known raises BadRecord (a KeyError) from every read,
    ``get`` with a default included: "can't tell" is not "absent". ``in`` says False for it: there is no value.
    Iteration goes over the keys as they were when it began and leaves out entries that are deleted meanwhile.
    """

    def __init__(self, directory: Directory[T], served: Served) -> None:
        self.directory = directory
        self._served = served
        self._decode = decoder(directory)

    def __repr__(self) -> str:
        return f"<View {self.directory.name!r}>"

    def __getitem__(self, key: str) -> T:
        served = self._served
        if not served.open:
            raise served.refusal()
        try:
            cell = served.entries[key.encode()]
        except (KeyError, UnicodeEncodeError, AttributeError):
            cell = self._cell(key)  # says which it is
        return self._decoded(cell)

    @overload
    def get(self, key: str, /) -> T | None: ...
    @overload
    def get(self, key: str, /, default: T | D) -> T | D: ...
    def get(self, key: str, /, default: Any = None) -> Any:
        """Return the value, or ``default`` where the key is absent. Raises BadRecord where that can't be told."""
        try:
            return self[key]
        except BadRecord:
            raise
        except KeyError:
            return default

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.encode(errors="surrogatepass") in self._table.shelf.entries

    def __len__(self) -> int:
        return len(self._table.shelf.entries)

    def __iter__(self) -> Iterator[str]:
        for name in self._table.shelf.all_keys():
            yield name.decode()

    def items(self) -> Items[T]:
        """Return the keys and values; see the class for what iteration promises."""
        return Items(self)

    def values(self) -> Values[T]:
        """Return the values; see the class for what iteration promises."""
        return Values(self)

    def snapshot(self) -> Iterator[tuple[str, T]]:
        """Yield keys and decoded values of the entries that were there when the iteration began."""
        reading = self._table.shelf.snapshot()
        for name, cell in _cells(reading, reading.all_keys()):
            yield name.decode(), self._decoded(cell)

    def get_many(self, keys: Iterable[str]) -> dict[str, T]:
        """Return the values of those keys that are present. Raises BadRecord as ``view[key]`` does."""
        found: dict[str, T] = {}
        for key in keys:
            try:
                found[key] = self[key]
            except BadRecord:
                raise
            except KeyError:
                continue
        return found

    def raw(self, key: str) -> bytes:
        """Return the value's bytes exactly as they are in the topic. Raises KeyError, BadRecord."""
        return self._cell(key)[:-TRAILER]

    def entry(self, key: str) -> Entry:
        """Return the entry with its bytes, partition, offset and timestamp. Raises KeyError, BadRecord."""
        return self._entry(key, self._cell(key))

    def record(self, name: bytes) -> tuple[bytes, int, int]:
        """Return value, partition and offset of the key with these UTF-8 bytes.

        What `entry` tells, for callers that count microseconds. Raises KeyError, BadRecord.
        """
        served = self._served
        if not served.open:
            raise served.refusal()
        cell = served.entries.get(name)
        if cell is None:
            cell = self._cell(name.decode(errors="replace"))  # says why
        partition, offset, _ = unpack(cell)
        return cell[:-TRAILER], partition, offset

    def entries(self, **fields: Any) -> list[Entry]:
        """Return the entries with these values in an indexed field (or fields), in the order of their keys.

        Raises UnknownIndex where no index covers exactly these fields.
        """
        found = self._matching(self._index_over(fields), fields)
        return [self._entry(name.decode(), cell) for name, cell in sorted(found)]

    def sizes(self) -> dict[int, int]:
        """Return how many entries came from each partition; memory counts them where the topic has several."""
        table = self._table
        return table.shelf.sizes() if table.spread else {0: len(table.shelf.entries)}

    def one(self, **fields: Any) -> T | None:
        """Return the value that a unique index answers with, None where there is none.

        ``one(acquirerId="A1")``; for a nested field ``one(**{"address.city": "Riga"})``. Raises UnknownIndex where no
        unique index covers exactly these fields.
        """
        secondary = self._index_over(fields)
        if not secondary.index.unique:
            raise UnknownIndex(f"index {secondary.index.name!r} of {self.directory.name!r} is not unique; use find()")
        cells = self._matching(secondary, fields)
        return self._decoded(cells[0][1]) if cells else None

    def find(self, **fields: Any) -> list[T]:
        """Return all values with these values in an indexed field (or fields), in the order of their keys.

        Raises UnknownIndex where no index covers exactly these fields.
        """
        return [self._decoded(cell) for _, cell in sorted(self._matching(self._index_over(fields), fields))]

    def index(self, name: str) -> IndexView:
        """Return an index as a mapping: indexed value (a tuple for several fields) → value, or list of values.

        Raises UnknownIndex.
        """
        index = self.directory.index_named(name)
        if index is None:
            known = ", ".join(repr(index.name) for index in self.directory.indexes) or "none"
            raise UnknownIndex(f"directory {self.directory.name!r} has no index {name!r}; it has: {known}")
        return IndexView(index, lambda fields: self.find(**fields), lambda: self._table.shelf.terms(name))

    @property
    def _table(self) -> Table:
        if not self._served.open:
            raise self._served.refusal()
        return self._served.table

    def _decoded(self, cell: bytes) -> T:
        try:
            return self._decode(cell[:-TRAILER])
        except Exception as error:
            where = origin(cell)
            place = f"{self.directory.topic} partition {where.partition} offset {where.offset}"
            raise DecodeError(f"the value at {place} can't be decoded: {type(error).__name__}") from error

    def _cell(self, key: str) -> bytes:
        if not isinstance(key, str):
            raise TypeError(f"keys of {self.directory.name!r} are text, not {type(key).__name__}")
        table = self._table
        name = key.encode(errors="surrogatepass")  # never in a topic: keys that are not UTF-8 are bad records
        bad = name in table.quarantine.names
        cell = table.shelf.entries.get(name)
        if cell is not None:
            return cell
        if bad:
            raise BadRecord(f"the newest record of {key!r} in {self.directory.name!r} is bad; see errors()")
        raise KeyError(key)

    def _matching(self, secondary: Secondary, fields: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
        """Return the entries that have the term right now; a unique index gives at most one."""
        try:
            wanted = secondary.term_for(fields)
        except DecodeError:
            return []  # nothing else is ever indexed
        table, index = self._table, secondary.index
        reading = table.shelf.snapshot()
        names: list[bytes] = reading.names(index.name, wanted) if wanted is not None else []
        while True:
            found = [pair for pair in _cells(reading, names) if secondary.term_of(table.document_of(pair[1])) == wanted]
            if found or not names:
                break
            before, names = names, reading.names(index.name, wanted)
            if names == before:
                break  # else it was handed on while we looked: whoever has it now was filed before
        if index.unique and len(found) > 1:
            return [max(found, key=lambda pair: newer(pair[1]))]
        return found

    def _index_over(self, fields: Mapping[str, Any]) -> Secondary:
        index = self.directory.index_over(fields)
        if index is None:
            known = ", ".join("+".join(index.fields) for index in self.directory.indexes) or "none"
            asked = "+".join(fields) or "no field"
            raise UnknownIndex(f"directory {self.directory.name!r} has no index over {asked}; it has: {known}")
        return self._table.indexes[index.name]

    def _entry(self, key: str, cell: bytes) -> Entry:
        partition, offset, timestamp_ms = unpack(cell)
        return Entry(key, cell[:-TRAILER], self.directory.topic, partition, offset, timestamp_ms)


def _cells(reading: Reading, names: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield those that are there."""
    entries = reading.entries
    for name in names:
        cell = entries.get(name)
        if cell is not None:
            yield name, cell
