"""Which records of a topic a directory holds, told in tasks by the store's own table, and their digests.

There is no second reading of ``active``, envelopes and bad records: each batch is applied to a table in memory, as a
store applies it, and what that table holds is what stores hold.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from compactory.directory import Directory
from compactory.read.digest import DirectoryDigest, range_of, record_digest
from compactory.records import Partition
from compactory.storage.memory_directory import MemoryDirectoryStorage
from compactory.table.batch import RecordRun
from compactory.table.table import Table

from ..digests import digest_of, no_sums, sums_of
from ..record_batch import Batches, in_arrow, of_rows

__all__ = ["BAD", "HELD", "digest_held", "list_held"]

HELD: Final = "held"
BAD: Final = "bad"
"""The newest record can't be read by the directory's definition."""

_SUMS: Final = pa.schema([("sums", pa.binary()), ("bad", pa.int64())])
_RECORDS: Final = pa.schema([("key", pa.binary()), ("digest", pa.binary()), ("state", pa.string())])


def digest_held(latest: DataFrame, directory: Directory[Any]) -> tuple[DirectoryDigest, int]:
    """The digests of what the directory holds of the newest records, and how many of them are bad. One Spark job."""

    def task(batches: Batches) -> Batches:
        sums, bad = no_sums(), 0
        for batch in batches:
            states = np.array(_states(directory, *(column.to_pylist() for column in batch.columns)), object)
            held = batch.filter(pa.array(states == HELD, pa.bool_()))
            sums += sums_of(*(column.to_pylist() for column in held.columns))
            bad += int(np.count_nonzero(states == BAD))
        yield of_rows([(sums.tobytes(), bad)], _SUMS)

    total, bad = no_sums(), 0
    for sums, refused in in_arrow(latest.select("key", "value"), task, _SUMS).collect():
        total += np.frombuffer(sums, total.dtype).reshape(total.shape)
        bad += refused
    return digest_of(total), bad


def list_held(latest: DataFrame, directory: Directory[Any], ranges: Collection[int]) -> DataFrame:
    """The records of some ranges that the directory holds, with their digests, and those that are bad. Lazy."""
    wanted = frozenset(ranges)

    def task(batches: Batches) -> Batches:
        for batch in batches:
            some = batch.filter(pa.array([range_of(key) in wanted for key in batch.column(0).to_pylist()], pa.bool_()))
            keys, values = (column.to_pylist() for column in some.columns)
            rows = zip(keys, values, _states(directory, keys, values), strict=True)
            found = [(key, record_digest(key, value), state) for key, value, state in rows if state is not None]
            yield of_rows(found, _RECORDS)

    return in_arrow(latest.select("key", "value"), task, _RECORDS)


def _states(directory: Directory[Any], keys: list[Any], values: list[Any]) -> list[str | None]:
    """The state of each record in a store, of keys that come once; None: the store holds nothing of it."""
    directory_storage = MemoryDirectoryStorage()
    table = Table(directory, directory_storage)
    table.apply(RecordRun(Partition(directory.topic, 0), keys, values, range(len(keys)), [0] * len(keys)), loading=True)
    held = directory_storage.mapping("owners" if directory.key else "entries")
    bad = table.quarantine.bad_topic_keys()
    return [HELD if key in held else BAD if key in bad else None for key in keys]
