"""Bad records: kept to be inspected, until a newer record of their key replaces them."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Collection, Iterator, MutableMapping
from typing import NamedTuple

import msgspec

from compactory.codec.packed_record import Origin
from compactory.errors import BackendCorrupt, BadRecord
from compactory.records import QuarantinedRecord

__all__ = ["Quarantine"]

log = logging.getLogger("compactory.store")

_MAX_COMPLETE = 1000
_MAX_BYTES = 64 << 20

BadRecordId = bytes | tuple[int, int]
"""The topic key of a bad record, or its partition and offset if it has no key."""


class _StoredRecord(msgspec.Struct, array_like=True, frozen=True):
    """A bad record as the storage keeps it. An incomplete one has neither value nor stack trace."""

    partition: int
    offset: int
    timestamp_ms: int
    lookup_key: bytes | None
    key: bytes | None
    value: bytes | None = None
    error: str = ""
    stacktrace: str = ""


class _Outstanding(NamedTuple):
    """The origin of a bad record, and its lookup key if that could be read."""

    origin: Origin
    lookup_key: bytes | None


_encoder = msgspec.msgpack.Encoder()
_decode = msgspec.msgpack.Decoder(_StoredRecord).decode


class Quarantine:
    """The outstanding bad records of one directory.

    Written by the reader thread, read by any. The newest 1,000 records, at most 64 MiB, are complete. Of the others
    only the keys are kept. ``stored`` is a mapping of the directory's storage. Memory has the bytes of complete records
    once. With ``strict`` the first bad record raises BadRecord in the reader thread instead. Raises BackendCorrupt if
    ``stored`` can't be read.

    ``total``            bad records since the start, including replaced ones
    ``bad_lookup_keys``  lookup key → number of its topic keys whose newest record is bad
    """

    def __init__(self, topic: str, directory: str, stored: MutableMapping[bytes, bytes], *, strict: bool) -> None:
        self.topic = topic
        self.directory = directory
        self.strict = strict
        self.total = 0
        self.bad_lookup_keys: dict[bytes, int] = {}
        self._stored = stored
        self._outstanding: dict[BadRecordId, _Outstanding] = {}
        self._complete: dict[BadRecordId, bytes] = {}  # as stored, the oldest first
        self._complete_bytes = 0
        self._dropped = 0  # outstanding records without a key that are not kept any more: nothing can replace them
        for data in list(stored.values()):
            self._remember(_decoded(data), data)
        self._trim()

    def __bool__(self) -> bool:
        return bool(self._outstanding)

    def has_any(self, keys: Collection[bytes | None]) -> bool:
        """Return True if the newest record of one of the topic keys is bad."""
        return bool(self._outstanding) and not self._outstanding.keys().isdisjoint(keys)

    def __iter__(self) -> Iterator[QuarantinedRecord]:
        """Yield the complete records, the oldest first; each is decoded when it is asked for."""
        return map(self._quarantined, list(self._complete.values()))

    def __contains__(self, bad: QuarantinedRecord) -> bool:
        """Return True if this record is complete, and not replaced by a newer one."""
        record_id = _record_id(bad.key, bad.partition, bad.offset)
        if record_id not in self._complete:
            return False
        return self._outstanding[record_id].origin[:2] == (bad.partition, bad.offset)

    @property
    def outstanding(self) -> int:
        """The number of bad records, including incomplete ones; after a restart without those that have no key."""
        return len(self._outstanding) + self._dropped

    def bad_topic_keys(self) -> frozenset[bytes]:
        """Return the topic keys whose newest record is bad. For the writing thread."""
        return frozenset(record_id for record_id in self._outstanding if isinstance(record_id, bytes))

    def add(
        self, origin: Origin, key: bytes | None, value: bytes | None, error: Exception, lookup_key: bytes | None
    ) -> None:
        """Add a bad record, with its lookup key if that could be read."""
        kind = type(error).__name__
        if self.strict:
            message = f"bad record in {self.topic} partition {origin.partition} offset {origin.offset}: {kind}"
            raise BadRecord(f'{message}; the store has on_bad_record="fail"') from error
        record_id = _record_id(key, origin.partition, origin.offset)
        previous = self._outstanding.get(record_id)
        record = _StoredRecord(*origin, lookup_key, key, value, *_texts_of(error))
        self._stored[_storage_key(record_id)] = data = _encoded(record)
        self._remember(record, data)
        self._trim()
        if previous is None or previous.origin[:2] != origin[:2]:  # otherwise it was a retry
            self._report(origin, kind)

    def outlives(self, key: bytes, good: Origin) -> bool:
        """Return True if the bad record of a topic key is of another partition, and newer than this good one."""
        outstanding = self._outstanding.get(key)
        if outstanding is None or outstanding.origin.partition == good.partition:
            return False
        bad = outstanding.origin
        return (bad.timestamp_ms, bad.partition, bad.offset) > (good.timestamp_ms, good.partition, good.offset)

    def clear(self, record_id: BadRecordId) -> None:
        """Remove a record, if it is there, because a newer record of its key is good or a tombstone."""
        outstanding = self._outstanding.pop(record_id, None)
        if outstanding is not None:
            self._stored.pop(_storage_key(record_id), None)
            self._drop_complete(record_id)
            self._count(outstanding.lookup_key, -1)

    def skip(self, bad: QuarantinedRecord) -> bool:
        """Remove a record as if it had never existed. Return False if it is not in the quarantine."""
        if bad not in self:
            return False
        self.clear(_record_id(bad.key, bad.partition, bad.offset))
        return True

    def _remember(self, record: _StoredRecord, data: bytes) -> None:
        record_id = _record_id(record.key, record.partition, record.offset)
        previous = self._outstanding.get(record_id)
        origin = Origin(record.partition, record.offset, record.timestamp_ms)
        self._outstanding[record_id] = _Outstanding(origin, record.lookup_key)
        self._count(record.lookup_key, 1)
        if previous is not None:
            self._count(previous.lookup_key, -1)
        self._drop_complete(record_id)
        if record.stacktrace:
            self._complete[record_id] = data
            self._complete_bytes += len(data)

    def _trim(self) -> None:
        """Make the oldest complete records incomplete, until the others are within the limits."""
        while len(self._complete) > 1 and (len(self._complete) > _MAX_COMPLETE or self._complete_bytes > _MAX_BYTES):
            record_id = next(iter(self._complete))
            if isinstance(record_id, bytes):
                origin, lookup_key = self._outstanding[record_id]
                self._stored[_storage_key(record_id)] = _encoded(_StoredRecord(*origin, lookup_key, record_id))
                self._drop_complete(record_id)
            else:
                self.clear(record_id)
                self._dropped += 1

    def _drop_complete(self, record_id: BadRecordId) -> None:
        self._complete_bytes -= len(self._complete.pop(record_id, b""))

    def _count(self, lookup_key: bytes | None, difference: int) -> None:
        """Add to the number of topic keys under a lookup key whose newest record is bad."""
        if lookup_key is None:
            return
        count = self.bad_lookup_keys.get(lookup_key, 0) + difference
        if count:
            self.bad_lookup_keys[lookup_key] = count
        else:
            del self.bad_lookup_keys[lookup_key]

    def _report(self, origin: Origin, kind: str) -> None:
        """Log the 1st, 10th, 100th … bad record: a topic full of them must not fill the log. Never logs values."""
        self.total += 1
        if str(self.total).rstrip("0") == "1":
            log.warning(
                "bad record number %d in directory %s: %s partition %d offset %d: %s; see quarantine()",
                self.total, self.directory, self.topic, origin.partition, origin.offset, kind,
            )  # fmt: skip

    def _quarantined(self, data: bytes) -> QuarantinedRecord:
        fields = msgspec.structs.asdict(_decoded(data))
        del fields["lookup_key"]
        return QuarantinedRecord(directory=self.directory, topic=self.topic, **fields)


def _record_id(key: bytes | None, partition: int, offset: int) -> BadRecordId:
    return (partition, offset) if key is None else key


def _storage_key(record_id: BadRecordId) -> bytes:
    return b"key " + record_id if isinstance(record_id, bytes) else b"place %d %d" % record_id


def _texts_of(error: Exception) -> tuple[str, str]:
    """Return the text and the stack trace of an error, without characters that UTF-8 can't encode."""
    kind = type(error).__name__
    try:
        texts = f"{kind}: {error}", "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 (a user's class may raise an error when it is printed)
        texts = f"{kind}: the error can't be printed", kind
    text, stacktrace = (text.encode(errors="replace").decode() for text in texts)
    return text, stacktrace


def _encoded(record: _StoredRecord) -> bytes:
    """Return a copy of the encoder's bytes, which take half as much memory again (msgspec 0.22)."""
    return bytes(memoryview(_encoder.encode(record)))


def _decoded(data: bytes) -> _StoredRecord:
    try:
        return _decode(data)
    except msgspec.MsgspecError as damage:
        raise BackendCorrupt(f"a stored bad record can't be read: {type(damage).__name__}") from damage
