"""The newest record of each key, in a bounded memory: what does not fit goes to files, parted by key."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa

from ..record_batch import Batches

__all__ = ["in_rows", "newest_records"]

_ROWS: Final = 20_000
"""Rows of a batch that is passed on."""
_EASY: Final = 256 << 20
"""Bytes of keys and values up to which older versions are not dropped yet."""
_BUCKETS: Final = 64
"""Files of a task; each one is read as a whole in the end."""


def newest_records(batches: Batches, memory: int) -> Batches:
    """Return the newest record of each key, each key once, tombstones included.

    Each batch has records of one partition, and partitions come one after the other, in log order. Within a partition
    the later offset is newer; between partitions the newer timestamp, then the higher partition. Holds about ``memory``
    bytes of keys and values.
    """
    pending: list[pa.RecordBatch] = []
    limit = min(memory, _EASY)
    size = 0
    with _spilling() as buckets:
        for batch in batches:
            pending.append(batch)
            size += batch.nbytes
            if size <= limit:
                continue
            pending = list(_newest_by_partition(pending))
            size = sum(batch.nbytes for batch in pending)
            limit = min(memory, max(_EASY, 2 * size))
            if size > memory * 3 // 4:
                buckets.add(pending)
                pending, size = [], 0
        if not buckets.is_empty:
            buckets.add(_newest_by_partition(pending))
            pending = []
        for part in buckets.read() if not buckets.is_empty else [pending]:
            yield from _newest(list(_newest_by_partition(part)))


def in_rows(batches: Iterable[pa.RecordBatch]) -> Batches:
    """Return the same records in batches of some ten thousand rows, which cost less to parse and pass on."""
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS:
            yield pa.concat_batches(pending)
            pending, rows = [], 0
    if rows:
        yield pa.concat_batches(pending)


def _newest_by_partition(batches: Sequence[pa.RecordBatch]) -> Batches:
    for _partition, records in groupby(batches, lambda batch: batch.column("partition")[0].as_py()):
        yield from _last(list(records))


def _newest(batches: Sequence[pa.RecordBatch]) -> Batches:
    """Return the newest record of each key between partitions, of which each has one record of a key."""
    if len({batch.column("partition")[0].as_py() for batch in batches}) < 2:
        return iter(batches)
    names = ("partition", "timestamp_ms")
    return _last(batches, np.lexsort([np.concatenate([batch.column(name) for batch in batches]) for name in names]))


def _last(batches: Sequence[pa.RecordBatch], order: np.ndarray | None = None) -> Batches:
    """Return the last record of each key in this order of rows, by default in their own order.

    Only keys are put into one piece, values never.
    """
    batches = [batch for batch in batches if batch.num_rows]
    if not batches:
        return
    keys = pa.concat_arrays([batch.column("key") for batch in batches])
    codes = keys.dictionary_encode().indices.to_numpy()
    rows = np.arange(len(codes)) if order is None else order
    last_rows = np.zeros(int(codes.max()) + 1, np.int64)
    last_rows[codes[rows]] = rows  # of several rows for one code the last one stays
    stays = np.zeros(len(codes), bool)
    stays[last_rows] = True
    ends = np.cumsum([batch.num_rows for batch in batches])
    for batch, end in zip(batches, ends, strict=True):
        newest = batch.filter(pa.array(stays[end - batch.num_rows : end]))
        if newest.num_rows:
            yield newest


class _Buckets:
    """Files of records in a folder, by a hash of their keys."""

    def __init__(self, folder: Path, files: ExitStack) -> None:
        self._folder = folder
        self._files = files
        self._writers: dict[int, Any] = {}

    @property
    def is_empty(self) -> bool:
        return not self._writers

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            hashes = np.fromiter(map(crc32, batch.column("key").to_pylist()), np.uint32, batch.num_rows)
            numbers = hashes % _BUCKETS
            for number in np.unique(numbers):
                self._writer(int(number), batch.schema).write_batch(batch.filter(pa.array(numbers == number)))

    def read(self) -> Iterator[list[pa.RecordBatch]]:
        """Return the records of each file, in the order in which they were added. Nothing can be added afterwards."""
        for number, writer in self._writers.items():
            writer.close()
            with pa.OSFile(str(self._folder / str(number))) as file:
                yield list(pa.ipc.open_stream(file))

    def _writer(self, number: int, schema: pa.Schema) -> Any:
        if number not in self._writers:
            file = self._files.enter_context(pa.OSFile(str(self._folder / str(number)), "wb"))
            self._writers[number] = pa.ipc.new_stream(file, schema)
        return self._writers[number]


@contextmanager
def _spilling() -> Iterator[_Buckets]:
    """Yield the buckets of a task, in Spark's folder for temporary files."""
    folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    with TemporaryDirectory(prefix="compactory-", dir=folders[0] or None) as folder, ExitStack() as files:
        yield _Buckets(Path(folder), files)
