"""Which records of a topic a directory holds, told in tasks by the store's own table, and their digests.

There is no second reading of ``active``, envelopes and bad records: each batch is applied to a table in memory, as a
store applies it, and what that table holds is what stores hold.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from compactory.directory import Directory
from compactory.entries.batch import Run
from compactory.entries.table import Table
from compactory.lookup.digest import RANGES, Digester, DirectoryDigest, RangeDigest, range_of, record_digest
from compactory.records import Partition
from compactory.storage.memory_directory import MemoryDirectoryStorage

from ..record_batch import Batches, Task, in_arrow, of_rows

__all__ = ["BAD", "HELD", "digest_held", "list_held"]

HELD: Final = "held"
BAD: Final = "bad"
"""The newest record can't be read by the directory's definition."""

_BAD_COUNT: Final = -1  # in place of a range
_SUMS: Final = pa.schema([("range", pa.int32()), ("count", pa.int64()), ("high", pa.binary()), ("low", pa.binary())])
"""Both sums of a range as bytes, for Spark has no unsigned numbers."""
_RECORDS: Final = pa.schema([("key", pa.binary()), ("digest", pa.binary()), ("state", pa.string())])


def digest_held(latest: DataFrame, directory: Directory[Any]) -> tuple[DirectoryDigest, int]:
    """The digests of what the directory holds of the newest records, and how many of them are bad. One Spark job."""
    digest, bad = DirectoryDigest(), 0
    for number, count, high, low in in_arrow(latest.select("key", "value"), _summing(directory), _SUMS).collect():
        if number == _BAD_COUNT:
            bad += count
        else:
            digest.add(number, RangeDigest(count, int.from_bytes(high, "big"), int.from_bytes(low, "big")))
    return digest, bad


def list_held(latest: DataFrame, directory: Directory[Any], ranges: Collection[int]) -> DataFrame:
    """The records of some ranges that the directory holds, with their digests, and those that are bad. Lazy."""
    return in_arrow(latest.select("key", "value"), _listing(directory, frozenset(ranges)), _RECORDS)


def _summing(directory: Directory[Any]) -> Task:
    def task(batches: Batches) -> Batches:
        digester, bad = Digester(), 0
        for batch in batches:
            keys, values = batch.column(0).to_pylist(), batch.column(1).to_pylist()
            states = _states(directory, keys, values)
            for key, value, state in zip(keys, values, states, strict=True):
                if state == HELD:
                    digester.add(key, value)
                bad += state == BAD
        sums = [
            (number, each.count, each.high.to_bytes(8, "big"), each.low.to_bytes(8, "big"))
            for number, each in enumerate(digester.result().ranges)
            if each.count
        ]
        yield of_rows([*sums, (_BAD_COUNT, bad, b"", b"")], _SUMS)

    return task


def _listing(directory: Directory[Any], ranges: frozenset[int]) -> Task:
    whole = len(ranges) == RANGES

    def task(batches: Batches) -> Batches:
        for batch in batches:
            rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
            rows = rows if whole else [row for row in rows if range_of(row[0]) in ranges]
            states = _states(directory, [row[0] for row in rows], [row[1] for row in rows])
            found = [
                (key, record_digest(key, value), state)
                for (key, value), state in zip(rows, states, strict=True)
                if state is not None
            ]
            yield of_rows(found, _RECORDS)

    return task


def _states(directory: Directory[Any], keys: list[bytes | None], values: list[bytes | None]) -> list[str | None]:
    """The state of each record in a store, of keys that come once; None: the store holds nothing of it."""
    directory_storage = MemoryDirectoryStorage()
    table = Table(directory, directory_storage)
    table.apply(Run(Partition(directory.topic, 0), keys, values, range(len(keys)), [0] * len(keys)), loading=True)
    held = directory_storage.mapping("owners" if directory.key else "entries")
    bad = table.quarantine.bad_keys()
    return [HELD if key in held else BAD if key in bad else None for key in keys]
