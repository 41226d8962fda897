"""Bad records: kept with what is needed to look into them, until a newer record of their key supersedes them."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Collection, Iterator, MutableMapping
from copy import copy
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import msgspec

from compactory.codec.packed_record import Origin
from compactory.errors import BadRecord
from compactory.records import QuarantinedRecord

__all__ = ["Quarantine"]

log = logging.getLogger("compactory.store")

_KEEP_RECORDS = 1000
_KEEP_BYTES = 64 << 20

Number = bytes | tuple[int, int]
"""The name under which a bad record is kept: its topic key, or partition and offset where it has none."""


class _Held(NamedTuple):
    """One bad record as it is kept. ``name`` is its lookup key, where that much could be read."""

    error: QuarantinedRecord
    name: bytes | None

    @property
    def whole(self) -> bool:
        """Whether it is kept whole; else only its key and its place are."""
        return bool(self.error.stacktrace)


class Quarantine:
    """The outstanding bad records of one directory.

    Written by the reader thread, read by any. The newest 1,000 records or 64 MiB are kept whole; which keys are bad is
    always known, as ``kept`` (a mapping of the directory's storage) holds them all. With ``strict`` the first
    bad record raises BadRecord in the reader instead.
    """

    def __init__(self, topic: str, directory: str, kept: MutableMapping[bytes, bytes], *, strict: bool) -> None:
        self.topic = topic
        self.directory = directory
        self.strict = strict
        self.total = 0  # bad records seen since the start, superseded ones included
        self.names: dict[bytes, int] = {}  # lookup key -> how many topic keys under it have a bad newest record
        self._kept = kept
        self._held: dict[Number, _Held] = {}
        self._whole: dict[Number, _Held] = {}  # those that are kept whole, the oldest first
        self._bytes = 0  # of those
        self._dropped = 0  # outstanding ones without a key that are not kept any more: none is ever superseded
        for packed in list(kept.values()):
            self._remember(self._unpacked(packed))

    def frozen(self) -> Quarantine:
        """Return one that knows the bad lookup keys of now, for readers. For the writing thread."""
        found = copy(self)
        found.names = self.names.copy()
        return found

    def __bool__(self) -> bool:
        return bool(self._held)

    def concerns(self, keys: Collection[bytes | None]) -> bool:
        """Say whether the newest record of one of the topic keys is bad."""
        return bool(self._held) and not self._held.keys().isdisjoint(keys)

    def __iter__(self) -> Iterator[QuarantinedRecord]:
        return iter([held.error for held in list(self._whole.values())])

    def __contains__(self, error: QuarantinedRecord) -> bool:
        """Whether this very record is kept whole, and not replaced by a newer one."""
        held = self._whole.get(_number(error))
        return held is not None and _place(held.error) == _place(error)

    @property
    def outstanding(self) -> int:
        """How many there are, those included that are not kept whole. After a restart without keyless ones."""
        return len(self._held) + self._dropped

    def bad_keys(self) -> frozenset[bytes]:
        """Return the topic keys whose newest record is bad. For the writing thread."""
        return frozenset(number for number in self._held if isinstance(number, bytes))

    def add(self, at: Origin, key: bytes | None, value: bytes | None, error: Exception, name: bytes | None) -> None:
        """Keep a bad record; ``name`` is its lookup key where that much could be read."""
        kind = type(error).__name__
        if self.strict:
            message = f"bad record in {self.topic} partition {at.partition} offset {at.offset}: {kind}"
            raise BadRecord(f'{message}; the store has on_bad_record="fail"') from error
        found = QuarantinedRecord(
            directory=self.directory,
            topic=self.topic,
            partition=at.partition,
            offset=at.offset,
            key=key,
            value=value,
            timestamp_ms=at.timestamp_ms,
            error=f"{kind}: {error}",
            stacktrace="".join(traceback.format_exception(error)),
        )
        again = found in self  # it was tried once more
        self._keep(_Held(found, name))
        if not again:
            self._report(at, kind)

    def outlives(self, key: bytes, good: Origin) -> bool:
        """Say whether the bad record of a topic key is of another partition, and newer than this good one."""
        held = self._held.get(key)
        if held is None or held.error.partition == good.partition:
            return False
        bad = held.error
        return (bad.timestamp_ms, bad.partition, bad.offset) > (good.timestamp_ms, good.partition, good.offset)

    def clear(self, number: Number) -> None:
        """Let go of a record. That of a topic key no longer counts if a newer one is good or a tombstone."""
        held = self._held.pop(number, None)
        if held is not None:
            self._kept.pop(_under(number), None)
            self._shorten(number)
            self._count(held.name, -1)

    def skip(self, error: QuarantinedRecord) -> bool:
        """Let go of a record, as if it had never come; False where it is not kept."""
        if error not in self:
            return False
        self.clear(_number(error))
        return True

    def _keep(self, held: _Held) -> None:
        self._kept[_under(_number(held.error))] = _packed(held)
        self._remember(held)

    def _remember(self, held: _Held) -> None:
        number = _number(held.error)
        former, self._held[number] = self._held.get(number), held
        self._count(held.name, 1)
        if former is not None:
            self._count(former.name, -1)
        self._shorten(number)
        if held.whole:
            self._whole[number] = held
            self._bytes += _size(held)
        while len(self._whole) > 1 and (len(self._whole) > _KEEP_RECORDS or self._bytes > _KEEP_BYTES):
            self._trim(next(iter(self._whole)))

    def _trim(self, number: Number) -> None:
        """Keep no more of a record than which key is bad."""
        held = self._held[number]
        if held.error.key is None:
            self.clear(number)
            self._dropped += 1
        else:
            self._keep(_Held(replace(held.error, value=None, error="", stacktrace=""), held.name))

    def _shorten(self, number: Number) -> None:
        held = self._whole.pop(number, None)
        self._bytes -= 0 if held is None else _size(held)

    def _count(self, name: bytes | None, change: int) -> None:
        """One topic key more or less under a lookup key has a bad newest record."""
        if name is None:
            return
        left = self.names.get(name, 0) + change
        if left:
            self.names[name] = left
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

    def _unpacked(self, packed: bytes) -> _Held:
        found = msgspec.json.decode(packed) | {"directory": self.directory, "topic": self.topic}
        return _Held(msgspec.convert(found, QuarantinedRecord), msgspec.convert(found["name"], bytes | None))


def _place(error: QuarantinedRecord) -> tuple[int, int]:
    return error.partition, error.offset


def _number(error: QuarantinedRecord) -> Number:
    return _place(error) if error.key is None else error.key


def _under(number: Number) -> bytes:
    """Return the key of a record in the storage."""
    return b"key " + number if isinstance(number, bytes) else b"place %d %d" % number


def _packed(held: _Held) -> bytes:
    """Return JSON, with bytes in base64."""
    fields: dict[str, Any] = asdict(held.error) | {"name": held.name}
    texts = {name: fields[name].encode(errors="replace").decode() for name in ("error", "stacktrace")}
    return msgspec.json.encode(fields | texts)


def _size(held: _Held) -> int:
    error = held.error
    return len(error.key or b"") + len(error.value or b"") + len(error.error) + len(error.stacktrace)
