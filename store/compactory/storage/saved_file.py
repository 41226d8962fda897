"""The file in which the tables of one topic are saved: mapped at a start, read bucket by bucket. Safe to read.

    MAGIC
    buckets …       some records each, in the order of the table, by columns: see `pack_fields`
    where …         for each directory: the place of each bucket, and by hash of topic key and lookup key its bucket
    description     JSON: topic, checkpoint, and what each directory has
    end             place and length of the description, SHA-256 of all before

The digest finds damage. It has no key, so it proves nothing of who wrote the file: whoever may write it decides what
lookups answer. Files are made with mode 0600.

Bucket 0 has the records whose lookup key belongs to several topic keys, as these depend on each other. A new file
replaces the old one atomically once it is complete. It holds only bytes and JSON, so reading it runs no code.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

import msgspec
import orjson

from compactory.errors import BackendCorrupt
from compactory.storage.checkpoint import Checkpoint

__all__ = [
    "Bucket",
    "HashIndex",
    "Layout",
    "SavedDirectory",
    "SavedFile",
    "SavedFileWriter",
    "replace_file",
]

_MAGIC = b"compactory saved tables 1\n"
_END = Struct("<QQ32s")
_PRIVATE = 0o600  # entries are for the owner of the file alone
_LENGTH = Struct("<I")
_PLACE = Struct("<Q")
_HASHED = Struct("<II")  # hash of a key, and the bucket that has it


class Bucket(NamedTuple):
    """Records by columns; ``terms`` has a column for each index, in the directory's order."""

    topic_keys: Sequence[bytes]
    packed_records: Sequence[bytes]
    lookup_keys: Sequence[bytes]
    terms: Sequence[Sequence[Any]]


class HashIndex:
    """Hash of a key → buckets that may have it, while a file is written."""

    def __init__(self, size: int) -> None:
        self.rows = [bytearray() for _ in range(size)]

    def add(self, keys: Sequence[bytes], bucket: int) -> None:
        rows, size = self.rows, len(self.rows)
        for digest in map(crc32, keys):
            rows[digest % size] += _HASHED.pack(digest, bucket)


def pack_fields(fields: Sequence[bytes]) -> bytes:
    """Return byte strings joined behind a layout for `Struct`, which splits them fast and checks the length."""
    layout = "".join([f"{len(field)}s" for field in fields]).encode()
    return b"".join((_LENGTH.pack(len(layout)), layout, *fields))


def _unpack_fields(data: Any, at: int) -> tuple[bytes, ...]:
    begin = at + _LENGTH.size
    end = begin + _LENGTH.unpack_from(data, at)[0]
    return Struct(data[begin:end]).unpack_from(data, end)


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The places in the file of the data of one directory.

    ``count``    records outside of bucket 0
    ``buckets``  number of buckets
    ``indexes``  number of columns of terms in each
    ``places``   place of the places of the buckets
    ``rows``     number of rows of hashes
    ``keys``     place of the hashes of topic keys
    ``names``    place of the hashes of lookup keys; None where these are the topic keys
    ``parts``    places of small mappings, by name
    """

    count: int
    buckets: int
    indexes: int
    places: int
    rows: int
    keys: int
    names: int | None
    parts: dict[str, int]


class _Description(msgspec.Struct):
    topic: str
    checkpoint: Checkpoint
    directories: dict[str, Layout]


class SavedDirectory:
    """The records of one directory in a file, ``count`` of them outside of bucket 0. For any thread."""

    def __init__(self, data: Any, layout: Layout) -> None:
        self.count, self.buckets = layout.count, layout.buckets
        self._data = data
        self._layout = layout
        if not (0 < self.buckets <= len(data) and layout.rows > 0):
            raise ValueError(f"it has {self.buckets} buckets and {layout.rows} rows of hashes")

    def part(self, name: str) -> dict[bytes, bytes]:
        """Return a small mapping that is kept whole. Raises BackendCorrupt."""
        with _mapped_errors():
            fields = _unpack_fields(self._data, self._layout.parts[name])
            half = len(fields) // 2
            return dict(zip(fields[:half], fields[half:], strict=True))

    def check(self, *, keyed: bool, indexes: int) -> None:
        """Raise BackendCorrupt where the layout is not that of such a directory, or is malformed.

        ``keyed`` says that lookup keys are no topic keys. It costs some 3 µs for each bucket.
        """
        layout = self._layout
        with _mapped_errors():
            if layout.indexes != indexes or (layout.names is not None) != keyed:
                raise ValueError("it has other indexes, or another key")
            if sum(self._sizes(3 if keyed else 2)) != layout.count:
                raise ValueError("its buckets have not as many records as it says")
            for table in filter(None, (layout.keys, layout.names)):
                if sum(map(self._length, self._places(table, layout.rows))) != layout.count * _HASHED.size:
                    raise ValueError("it has not as many hashes as records")

    def bucket(self, number: int) -> Bucket:
        """Return a bucket's records. Raises BackendCorrupt."""
        with _mapped_errors():
            fields = _unpack_fields(self._data, self._at(self._layout.places, number))
            rows = len(fields) - self._layout.indexes
            keyed = self._layout.names is not None
            count = rows // (3 if keyed else 2)
            keys = fields[:count]
            terms = [[_term(term) for term in orjson.loads(column)] for column in fields[rows:]]
            return Bucket(keys, fields[count : 2 * count], fields[2 * count : rows] if keyed else keys, terms)

    def buckets_of(self, key: bytes, *, named: bool) -> list[int]:
        """Return the buckets that may have a topic key or, ``named``, a lookup key; bucket 0 left out."""
        keys, names = self._layout.keys, self._layout.names
        digest = crc32(key)
        at = self._at(names if named and names is not None else keys, digest % self._layout.rows)
        begin = at + _LENGTH.size
        row = self._data[begin : begin + _LENGTH.unpack_from(self._data, at)[0]]
        return [bucket for row_digest, bucket in _HASHED.iter_unpack(row) if row_digest == digest]

    def _sizes(self, columns: int) -> Iterator[int]:
        """Yield the number of records in each bucket but the first."""
        for number, place in enumerate(self._places(self._layout.places, self._layout.buckets)):
            begin = place + _LENGTH.size
            fields = self._data[begin : begin + self._length(place)].count(b"s") - self._layout.indexes
            if fields < 0 or fields % columns:
                raise ValueError(f"bucket {number} has columns of different lengths")
            if number:
                yield fields // columns

    def _length(self, place: int) -> int:
        """Return the number of bytes at a place, which the file has."""
        length: int = _LENGTH.unpack_from(self._data, place)[0]
        if place + _LENGTH.size + length > len(self._data):
            raise ValueError("it has a place that is not in the file")
        return length

    def _places(self, table: int, number: int) -> tuple[int, ...]:
        if not 0 <= table <= len(self._data) - _PLACE.size * number:
            raise ValueError("it has a table that is not in the file")
        return Struct(f"<{number}Q").unpack_from(self._data, table)

    def _at(self, table: int, number: int) -> int:
        return int(_PLACE.unpack_from(self._data, table + _PLACE.size * number)[0])


@contextmanager
def _mapped_errors() -> Iterator[None]:
    """Raise BackendCorrupt instead of the errors of malformed data."""
    try:
        yield
    except (struct.error, LookupError, TypeError, ValueError, OverflowError) as damage:
        why = str(damage) if type(damage) is ValueError else type(damage).__name__
        raise BackendCorrupt(f"a saved file is malformed: {why}") from damage


class SavedFile:
    """A saved file of a topic. Its digest was checked."""

    def __init__(self, path: Path, topic: str) -> None:
        """Map a file. Raises OSError where there is none, ValueError for one that can't be used."""
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < len(_MAGIC) + _END.size:
                raise ValueError("it was cut off")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if data[: len(_MAGIC)] != _MAGIC:
            raise ValueError("it is not of this format")
        at, length, digest = _END.unpack_from(data, len(data) - _END.size)
        with memoryview(data) as view, view[: len(data) - _END.size] as checked:
            if at + length != len(checked) or hashlib.sha256(checked).digest() != digest:
                raise ValueError("its digest is wrong: it was damaged or cut off")
        try:
            description = msgspec.json.decode(data[at : at + length], type=_Description)
        except msgspec.MsgspecError as wrong:
            raise ValueError(f"its description can't be read: {wrong}") from wrong
        if description.topic != topic:
            raise ValueError(f"it holds topic {description.topic!r}")
        self.checkpoint = description.checkpoint
        self.directories = {name: SavedDirectory(data, layout) for name, layout in description.directories.items()}


class SavedFileWriter:
    """Writes a file; for one thread. The new records count once `finish` has replaced the former file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._at = 0
        self._add(_MAGIC)

    def bucket(self, bucket: Bucket, *, keyed: bool) -> int:
        """Write a bucket; return its offset in the file."""
        lookup_keys = bucket.lookup_keys if keyed else ()
        terms = [orjson.dumps(column) for column in bucket.terms]
        return self._add(pack_fields([*bucket.topic_keys, *bucket.packed_records, *lookup_keys, *terms]))

    def part(self, mapping: Mapping[bytes, bytes]) -> int:
        return self._add(pack_fields([*mapping, *mapping.values()]))

    def index(self, index: HashIndex) -> int:
        """Write the hashes of keys and the buckets that have them; return the place."""
        return self.places([self._add(_LENGTH.pack(len(row)) + row) for row in index.rows])

    def places(self, places: Sequence[int]) -> int:
        """Write the places of buckets; return the place of that."""
        return self._add(Struct(f"<{len(places)}Q").pack(*places))

    def finish(self, topic: str, checkpoint: Checkpoint, directories: dict[str, Layout]) -> None:
        description = msgspec.json.encode(_Description(topic, checkpoint, directories))
        at = self._add(description)
        self._file.write(_END.pack(at, len(description), self._digest.digest()))

    def _add(self, data: bytes) -> int:
        at, self._at = self._at, self._at + len(data)
        self._digest.update(data)
        self._file.write(data)
        return at


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO | None]:
    """Open a file that replaces ``path`` if the block raises nothing. Yields None while another process writes it."""
    new = path.with_name(f"{path.name}.new")
    with open(new, "ab", opener=_private) as file:
        os.fchmod(file.fileno(), _PRIVATE)  # that of a killed process may have had another mode
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = new.exists() and new.stat().st_ino == os.fstat(file.fileno()).st_ino
        except BlockingIOError:
            is_ours = False
        except OSError:  # a file system without locks
            is_ours = True
        if not is_ours:  # another process writes it, or has just put it in place
            yield None
            return
        file.truncate(0)
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, _PRIVATE)


def _term(term: Any) -> Any:
    """Return a term as it was before JSON made a list of a tuple."""
    return tuple(map(_term, term)) if isinstance(term, list) else term
