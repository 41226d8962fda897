"""Bad records: kept with what is needed to look into them, until a newer record of their key supersedes them."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Collection, Iterator

from compactory.errors import BadRecord
from compactory.records import Partition, RecordError

__all__ = ["Quarantine"]

log = logging.getLogger("compactory.store")

_KEEP_RECORDS = 1000
_KEEP_BYTES = 64 << 20


class Quarantine:
    """The outstanding bad records of one directory.

    Written by the reader thread, read by any. The newest 1,000 records or 64 MiB are kept whole; which keys are bad is
    always known. With ``strict`` the first bad record raises BadRecord in the reader instead.
    """

    def __init__(self, directory: str, *, strict: bool) -> None:
        self.directory = directory
        self.strict = strict
        self.total = 0  # bad records seen since the start, superseded ones included
        self.names: dict[bytes, bytes] = {}  # lookup key -> topic key, for as long as its newest record is bad
        self._records: dict[tuple[Partition, int], RecordError] = {}
        self._by_key: dict[bytes, tuple[tuple[Partition, int], bytes | None]] = {}
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def concerns(self, keys: Collection[bytes | None]) -> bool:
        """Say whether the newest record of one of the topic keys is bad."""
        return bool(self._by_key) and not self._by_key.keys().isdisjoint(keys)

    def __iter__(self) -> Iterator[RecordError]:
        return iter(list(self._records.values()))

    def add(
        self,
        partition: Partition,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        error: Exception,
        name: bytes | None,
    ) -> None:
        """Keep a bad record; ``name`` is its lookup key where that much could be read."""
        kind = type(error).__name__
        if self.strict:
            message = f"bad record in {partition.topic} partition {partition.partition} offset {offset}: {kind}"
            raise BadRecord(f'{message}; the store was told on_bad_record="fail"') from error
        place = (partition, offset)
        record = RecordError(
            topic=partition.topic,
            partition=partition.partition,
            offset=offset,
            key=key,
            value=value,
            timestamp_ms=timestamp_ms,
            error=f"{kind}: {error}",
            stacktrace="".join(traceback.format_exception(error)),
        )
        self._records[place] = record
        self._bytes += _size(record)
        if key is not None:
            former = self._by_key.get(key)
            self._by_key[key] = (place, name)
            if name is not None:
                self.names[name] = key
            if former is not None:
                self._forget(key, former[0], former[1] if former[1] != name else None)
        self._trim()
        self._report(partition, offset, kind)

    def clear(self, key: bytes) -> None:
        """A newer record of the topic key is good or a tombstone: the bad one no longer counts."""
        found = self._by_key.pop(key, None)
        if found is not None:
            self._forget(key, *found)

    def _forget(self, key: bytes, place: tuple[Partition, int], name: bytes | None) -> None:
        record = self._records.pop(place, None)
        if record is not None:
            self._bytes -= _size(record)
        if name is not None and self.names.get(name) == key:
            del self.names[name]

    def _trim(self) -> None:
        while len(self._records) > 1 and (len(self._records) > _KEEP_RECORDS or self._bytes > _KEEP_BYTES):
            self._bytes -= _size(self._records.pop(next(iter(self._records))))

    def _report(self, partition: Partition, offset: int, kind: str) -> None:
        """Log the 1st, 10th, 100th …: a topic full of bad records must not fill the log. Never the value."""
        self.total += 1
        if str(self.total).rstrip("0") == "1":
            log.warning(
                "bad record number %d in directory %s: %s partition %d offset %d: %s; see errors()",
                self.total, self.directory, partition.topic, partition.partition, offset, kind,
            )  # fmt: skip


def _size(record: RecordError) -> int:
    return len(record.key or b"") + len(record.value or b"")
