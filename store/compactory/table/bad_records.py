"""Bad records: kept with what is needed to look into them, until a newer record of their key supersedes them."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Collection, Iterator, MutableMapping
from copy import copy
from typing import NamedTuple

import msgspec

from compactory.codec.packed_record import Origin
from compactory.errors import BackendCorrupt, BadRecord
from compactory.records import QuarantinedRecord

__all__ = ["Quarantine"]

log = logging.getLogger("compactory.store")

_KEEP_RECORDS = 1000
_KEEP_BYTES = 64 << 20

Number = bytes | tuple[int, int]
"""The name under which a bad record is kept: its topic key, or partition and offset where it has none."""


class _Packed(msgspec.Struct, array_like=True, frozen=True):
    """A bad record as the storage keeps it. One that is not kept whole has neither value nor stack trace."""

    partition: int
    offset: int
    timestamp_ms: int
    name: bytes | None
    key: bytes | None
    value: bytes | None = None
    error: str = ""
    stacktrace: str = ""


class _Outstanding(NamedTuple):
    """Where a bad record lies. ``name`` is its lookup key, where that much could be read."""

    origin: Origin
    name: bytes | None


_encoder = msgspec.msgpack.Encoder()
_decode = msgspec.msgpack.Decoder(_Packed).decode


class Quarantine:
    """The outstanding bad records of one directory.

    Written by the reader thread, read by any. The newest 1,000 records or 64 MiB are kept whole; which keys are bad is
    always known, as ``kept`` (a mapping of the directory's storage) has them all. What is kept whole is in memory
    once, as the bytes that ``kept`` has. With ``strict`` the first bad record raises BadRecord in the reader instead.
    Raises BackendCorrupt where ``kept`` can't be read.
    """

    def __init__(self, topic: str, directory: str, kept: MutableMapping[bytes, bytes], *, strict: bool) -> None:
        self.topic = topic
        self.directory = directory
        self.strict = strict
        self.total = 0  # bad records seen since the start, superseded ones included
        self.names: dict[bytes, int] = {}  # lookup key -> how many topic keys under it have a bad newest record
        self._kept = kept
        self._outstanding: dict[Number, _Outstanding] = {}
        self._whole: dict[Number, bytes] = {}  # packed; those that are kept whole, the oldest first
        self._bytes = 0  # of those
        self._dropped = 0  # outstanding ones without a key that are not kept any more: none is ever superseded
        for packed in list(kept.values()):
            self._remember(_unpacked(packed), packed)
        self._trim()

    def frozen(self) -> Quarantine:
        """Return one that knows the bad lookup keys of now, for readers. For the writing thread."""
        quarantine = copy(self)
        quarantine.names = self.names.copy()
        return quarantine

    def __bool__(self) -> bool:
        return bool(self._outstanding)

    def concerns(self, keys: Collection[bytes | None]) -> bool:
        """Return True if the newest record of one of the topic keys is bad."""
        return bool(self._outstanding) and not self._outstanding.keys().isdisjoint(keys)

    def __iter__(self) -> Iterator[QuarantinedRecord]:
        """Yield the records that are kept whole now, the oldest first; each is read when it is asked for."""
        return map(self._record, list(self._whole.values()))

    def __contains__(self, error: QuarantinedRecord) -> bool:
        """Return True if this very record is kept whole, and not replaced by a newer one."""
        number = _number(error.key, error.partition, error.offset)
        outstanding = self._outstanding.get(number)
        return (
            outstanding is not None
            and number in self._whole
            and outstanding.origin[:2] == (error.partition, error.offset)
        )

    @property
    def outstanding(self) -> int:
        """The number of bad records, those included that are not kept whole. After a restart without keyless ones."""
        return len(self._outstanding) + self._dropped

    def bad_keys(self) -> frozenset[bytes]:
        """Return the topic keys whose newest record is bad. For the writing thread."""
        return frozenset(number for number in self._outstanding if isinstance(number, bytes))

    def add(self, at: Origin, key: bytes | None, value: bytes | None, error: Exception, name: bytes | None) -> None:
        """Keep a bad record; ``name`` is its lookup key where that much could be read."""
        kind = type(error).__name__
        if self.strict:
            message = f"bad record in {self.topic} partition {at.partition} offset {at.offset}: {kind}"
            raise BadRecord(f'{message}; the store has on_bad_record="fail"') from error
        number = _number(key, at.partition, at.offset)
        former = self._outstanding.get(number)
        record = _Packed(*at, name, key, value, *_described(error))
        self._kept[_under(number)] = packed = _encoded(record)
        self._remember(record, packed)
        self._trim()
        if former is None or former.origin[:2] != at[:2]:  # else it was tried once more
            self._report(at, kind)

    def outlives(self, key: bytes, good: Origin) -> bool:
        """Return True if the bad record of a topic key is of another partition, and newer than this good one."""
        outstanding = self._outstanding.get(key)
        if outstanding is None or outstanding.origin.partition == good.partition:
            return False
        bad = outstanding.origin
        return (bad.timestamp_ms, bad.partition, bad.offset) > (good.timestamp_ms, good.partition, good.offset)

    def clear(self, number: Number) -> None:
        """Let go of a record. That of a topic key no longer counts if a newer one is good or a tombstone."""
        outstanding = self._outstanding.pop(number, None)
        if outstanding is not None:
            self._kept.pop(_under(number), None)
            self._drop_whole(number)
            self._count(outstanding.name, -1)

    def skip(self, error: QuarantinedRecord) -> bool:
        """Let go of a record, as if it had never come; False where it is not kept."""
        if error not in self:
            return False
        self.clear(_number(error.key, error.partition, error.offset))
        return True

    def _remember(self, record: _Packed, packed: bytes) -> None:
        number = _number(record.key, record.partition, record.offset)
        former = self._outstanding.get(number)
        origin = Origin(record.partition, record.offset, record.timestamp_ms)
        self._outstanding[number] = _Outstanding(origin, record.name)
        self._count(record.name, 1)
        if former is not None:
            self._count(former.name, -1)
        self._drop_whole(number)
        if record.stacktrace:
            self._whole[number] = packed
            self._bytes += len(packed)

    def _trim(self) -> None:
        """Keep no more of the oldest records than which key is bad, until the others are within the limits."""
        while len(self._whole) > 1 and (len(self._whole) > _KEEP_RECORDS or self._bytes > _KEEP_BYTES):
            number = next(iter(self._whole))
            if isinstance(number, bytes):
                origin, name = self._outstanding[number]
                self._kept[_under(number)] = _encoded(_Packed(*origin, name, number))
                self._drop_whole(number)
            else:
                self.clear(number)
                self._dropped += 1

    def _drop_whole(self, number: Number) -> None:
        self._bytes -= len(self._whole.pop(number, b""))

    def _count(self, name: bytes | None, change: int) -> None:
        """Count one topic key more or less with a bad newest record under a lookup key."""
        if name is None:
            return
        count = self.names.get(name, 0) + change
        if count:
            self.names[name] = count
        else:
            del self.names[name]

    def _report(self, at: Origin, kind: str) -> None:
        """Log the 1st, 10th, 100th …: a topic full of bad records must not fill the log. Never the value."""
        self.total += 1
        if str(self.total).rstrip("0") == "1":
            log.warning(
                "bad record number %d in directory %s: %s partition %d offset %d: %s; see quarantine()",
                self.total, self.directory, self.topic, at.partition, at.offset, kind,
            )  # fmt: skip

    def _record(self, packed: bytes) -> QuarantinedRecord:
        record = _unpacked(packed)
        return QuarantinedRecord(
            directory=self.directory,
            topic=self.topic,
            partition=record.partition,
            offset=record.offset,
            key=record.key,
            value=record.value,
            timestamp_ms=record.timestamp_ms,
            error=record.error,
            stacktrace=record.stacktrace,
        )


def _number(key: bytes | None, partition: int, offset: int) -> Number:
    return (partition, offset) if key is None else key


def _under(number: Number) -> bytes:
    """Return the key of a record in the storage."""
    return b"key " + number if isinstance(number, bytes) else b"place %d %d" % number


def _described(error: Exception) -> tuple[str, str]:
    """Return the text and the stack trace of an error, as UTF-8 can have them."""
    kind = type(error).__name__
    try:
        texts = f"{kind}: {error}", "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 (a class of the user's may raise when it is printed)
        texts = f"{kind}: the error can't be printed", kind
    text, stacktrace = (text.encode(errors="replace").decode() for text in texts)
    return text, stacktrace


def _encoded(record: _Packed) -> bytes:
    """Return a copy of what the encoder returns, whose bytes take half as much again (msgspec 0.22)."""
    return bytes(memoryview(_encoder.encode(record)))


def _unpacked(packed: bytes) -> _Packed:
    try:
        return _decode(packed)
    except msgspec.MsgspecError as damage:
        raise BackendCorrupt(f"a bad record that was kept makes no sense: {type(damage).__name__}") from damage
