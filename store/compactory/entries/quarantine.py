"""Bad records: kept with what is needed to look into them, until a newer record of their key supersedes them."""

from __future__ import annotations

import logging
import traceback
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, MutableMapping
from copy import copy
from dataclasses import dataclass, replace

import orjson

from compactory.codec.packed_record import Origin
from compactory.errors import BadRecord
from compactory.records import Partition, QuarantinedRecord

__all__ = ["Place", "Quarantine"]

log = logging.getLogger("compactory.store")

_KEEP_RECORDS = 1000
_KEEP_BYTES = 64 << 20

Place = tuple[int, int]  # partition and offset


@dataclass(frozen=True, kw_only=True, slots=True)
class _Held:
    """One bad record as it is kept. ``name`` is its lookup key, where that much could be read."""

    error: QuarantinedRecord
    name: bytes | None
    whole: bool = True  # else only its key and its place are kept

    @property
    def place(self) -> Place:
        return self.error.partition, self.error.offset


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
        self._records: dict[Place, _Held] = {}
        self._by_key: dict[bytes, _Held] = {}
        self._bytes = 0
        self._keyless = 0  # outstanding ones without a key: none of them is ever superseded
        for packed in list(kept.values()):
            self._remember(self._unpacked(packed))

    def frozen(self) -> Quarantine:
        """Return one that knows the bad lookup keys of now, for readers. For the writing thread."""
        found = copy(self)
        found.names = self.names.copy()
        return found

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def concerns(self, keys: Collection[bytes | None]) -> bool:
        """Say whether the newest record of one of the topic keys is bad."""
        return bool(self._by_key) and not self._by_key.keys().isdisjoint(keys)

    def __iter__(self) -> Iterator[QuarantinedRecord]:
        return iter([held.error for held in list(self._records.values())])

    def __contains__(self, place: Place) -> bool:
        return place in self._records

    @property
    def outstanding(self) -> int:
        """How many there are, those included that are not kept whole. After a restart without keyless ones."""
        return len(self._by_key) + self._keyless

    def bad_keys(self) -> frozenset[bytes]:
        """Return the topic keys whose newest record is bad. For the writing thread."""
        return frozenset(self._by_key)

    def error_at(self, place: Place) -> QuarantinedRecord | None:
        """Return the record at a place, if it is kept."""
        held = self._records.get(place)
        return held.error if held is not None else None

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
        found = QuarantinedRecord(
            directory=self.directory,
            topic=partition.topic,
            partition=partition.partition,
            offset=offset,
            key=key,
            value=value,
            timestamp_ms=timestamp_ms,
            error=f"{kind}: {error}",
            stacktrace="".join(traceback.format_exception(error)),
        )
        held = _Held(error=found, name=name)
        again = held.place in self._records  # it was tried once more
        self._kept[_under(held)] = _packed(held)
        self._remember(held)
        if not again:
            self._report(partition, offset, kind)

    def outlives(self, key: bytes, good: Origin) -> bool:
        """Say whether the bad record of a topic key is of another partition, and newer than this good one."""
        held = self._by_key.get(key)
        if held is None or held.error.partition == good.partition:
            return False
        bad = held.error
        return (bad.timestamp_ms, bad.partition, bad.offset) > (good.timestamp_ms, good.partition, good.offset)

    def clear(self, key: bytes) -> None:
        """A newer record of the topic key is good or a tombstone: the bad one no longer counts."""
        held = self._by_key.pop(key, None)
        if held is not None:
            self._kept.pop(_under(held), None)
            self._forget(held)
            self._release(held.name)

    def skip(self, place: Place) -> bool:
        """Let go of the record at a place, as if it had never come; False where it is not kept."""
        held = self._records.get(place)
        if held is None:
            return False
        if held.error.key is None:
            self._keyless -= 1
        elif self._by_key.get(held.error.key) is held:
            del self._by_key[held.error.key]
            self._release(held.name)
        self._kept.pop(_under(held), None)
        self._forget(held)
        return True

    def _remember(self, held: _Held) -> None:
        key = held.error.key
        before = self._records.pop(held.place, None)
        self._bytes -= 0 if before is None else _size(before)
        if held.whole:
            self._records[held.place] = held
            self._bytes += _size(held)
        if key is None:
            self._keyless += before is None
        else:
            former = self._by_key.get(key)
            self._by_key[key] = held
            if held.name is not None:
                self.names[held.name] = self.names.get(held.name, 0) + 1
            if former is not None:
                self._release(former.name)
                if former.place != held.place:
                    self._forget(former)
        self._trim()

    def _forget(self, held: _Held) -> None:
        if self._records.pop(held.place, None) is not None:
            self._bytes -= _size(held)

    def _release(self, name: bytes | None) -> None:
        """One topic key less under a lookup key has a bad newest record."""
        if name is None:
            return
        left = self.names[name] - 1
        if left:
            self.names[name] = left
        else:
            del self.names[name]

    def _trim(self) -> None:
        while len(self._records) > 1 and (len(self._records) > _KEEP_RECORDS or self._bytes > _KEEP_BYTES):
            held = self._records.pop(next(iter(self._records)))
            self._bytes -= _size(held)
            key = held.error.key
            if key is None:
                self._kept.pop(_under(held), None)
            elif self._by_key.get(key) is held:
                short = replace(held.error, value=None, error="", stacktrace="")
                self._by_key[key] = rest = _Held(error=short, name=held.name, whole=False)
                self._kept[_under(rest)] = _packed(rest)

    def _report(self, partition: Partition, offset: int, kind: str) -> None:
        """Log the 1st, 10th, 100th …: a topic full of bad records must not fill the log. Never the value."""
        self.total += 1
        if str(self.total).rstrip("0") == "1":
            log.warning(
                "bad record number %d in directory %s: %s partition %d offset %d: %s; see quarantine()",
                self.total, self.directory, partition.topic, partition.partition, offset, kind,
            )  # fmt: skip

    def _unpacked(self, packed: bytes) -> _Held:
        found = orjson.loads(packed)
        error = QuarantinedRecord(
            directory=self.directory,
            topic=self.topic,
            partition=found["partition"],
            offset=found["offset"],
            key=_bytes(found["key"]),
            value=_bytes(found["value"]),
            timestamp_ms=found["timestamp_ms"],
            error=found["error"],
            stacktrace=found["stacktrace"],
        )
        return _Held(error=error, name=_bytes(found["name"]), whole=found.get("whole", True))


def _under(held: _Held) -> bytes:
    """Return the key of a record in the storage: its topic key, or its place where it has none."""
    key = held.error.key
    return b"place %d %d" % held.place if key is None else b"key " + key


def _packed(held: _Held) -> bytes:
    error = held.error
    fields = {
        "partition": error.partition,
        "offset": error.offset,
        "key": _text(error.key),
        "value": _text(error.value),
        "name": _text(held.name),
        "whole": held.whole,
        "timestamp_ms": error.timestamp_ms,
        "error": error.error.encode(errors="replace").decode(),
        "stacktrace": error.stacktrace.encode(errors="replace").decode(),
    }
    return bytes(memoryview(orjson.dumps(fields)))  # a copy: the original takes up to ten times its length (orjson 3)


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def _size(held: _Held) -> int:
    error = held.error
    return len(error.key or b"") + len(error.value or b"") + len(error.error) + len(error.stacktrace)
