"""Reference directories at memory speed, fed by compacted Kafka topics.

from compactory import GlobalStore

with GlobalStore("localhost:9092", ["terminal_acquirer"]) as store:
    store["terminal_acquirer"]["T1"]

A name is imported at its first use: `import compactory` takes a few milliseconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compactory.async_store import AsyncGlobalStore
    from compactory.directory import Directory, Index, Projection
    from compactory.errors import (
        BackendCorrupt,
        BackendFailed,
        BackendLocked,
        BadRecord,
        BatchRefused,
        CompactoryError,
        ConfigError,
        Conflict,
        CursorConflict,
        DecodeError,
        EntryMissing,
        LeaseLost,
        NotReady,
        OrderRefused,
        PreconditionFailed,
        StaleData,
        StartTimeout,
        StoreClosed,
        StoreFailed,
        UnknownDirectory,
        UnknownIndex,
        Unreachable,
        WaitTimeout,
        WatchExpired,
        WriteFailed,
        WriteRefused,
    )
    from compactory.kafka.client import Kafka
    from compactory.loading import Loading
    from compactory.options import StoreOptions
    from compactory.read.digest import DirectoryDigest, RangeDigest
    from compactory.read.iteration import IndexView
    from compactory.read.snapshot import DirectorySnapshot, SnapshotRecord
    from compactory.read.store_snapshot import StoreSnapshot
    from compactory.read.view import View
    from compactory.records import Contested, Entry, Partition, QuarantinedRecord, StoreState, Topic
    from compactory.storage.backend import Backend
    from compactory.storage.memory_backend import Memory
    from compactory.storage.rocksdb.backend import RocksDB
    from compactory.store import GlobalStore
    from compactory.token import Token
    from compactory.watch.change import Change, Cursor
    from compactory.watch.watch import Watch
    from compactory.write.writer import DirectoryWriter

__all__ = [
    "AsyncGlobalStore",
    "Backend",
    "BackendCorrupt",
    "BackendFailed",
    "BackendLocked",
    "BadRecord",
    "BatchRefused",
    "Change",
    "CompactoryError",
    "ConfigError",
    "Conflict",
    "Contested",
    "Cursor",
    "CursorConflict",
    "DecodeError",
    "Directory",
    "DirectoryDigest",
    "DirectorySnapshot",
    "DirectoryWriter",
    "Entry",
    "EntryMissing",
    "GlobalStore",
    "Index",
    "IndexView",
    "Kafka",
    "LeaseLost",
    "Loading",
    "Memory",
    "NotReady",
    "OrderRefused",
    "Partition",
    "PreconditionFailed",
    "Projection",
    "QuarantinedRecord",
    "RangeDigest",
    "RocksDB",
    "SnapshotRecord",
    "StaleData",
    "StartTimeout",
    "StoreClosed",
    "StoreFailed",
    "StoreOptions",
    "StoreSnapshot",
    "StoreState",
    "Token",
    "Topic",
    "UnknownDirectory",
    "UnknownIndex",
    "Unreachable",
    "View",
    "WaitTimeout",
    "Watch",
    "WatchExpired",
    "WriteFailed",
    "WriteRefused",
]

_MODULES = {
    "AsyncGlobalStore": "async_store",
    "Backend": "storage.backend",
    "BackendCorrupt": "errors",
    "BackendFailed": "errors",
    "BackendLocked": "errors",
    "BadRecord": "errors",
    "BatchRefused": "errors",
    "Change": "watch.change",
    "CompactoryError": "errors",
    "ConfigError": "errors",
    "Conflict": "errors",
    "CursorConflict": "errors",
    "Contested": "records",
    "Cursor": "watch.change",
    "DecodeError": "errors",
    "Directory": "directory",
    "DirectoryDigest": "read.digest",
    "DirectorySnapshot": "read.snapshot",
    "DirectoryWriter": "write.writer",
    "Entry": "records",
    "EntryMissing": "errors",
    "GlobalStore": "store",
    "Index": "directory",
    "IndexView": "read.iteration",
    "Kafka": "kafka.client",
    "LeaseLost": "errors",
    "Loading": "loading",
    "Memory": "storage.memory_backend",
    "NotReady": "errors",
    "OrderRefused": "errors",
    "Partition": "records",
    "PreconditionFailed": "errors",
    "Projection": "directory",
    "QuarantinedRecord": "records",
    "RangeDigest": "read.digest",
    "RocksDB": "storage.rocksdb.backend",
    "SnapshotRecord": "read.snapshot",
    "StaleData": "errors",
    "StartTimeout": "errors",
    "StoreClosed": "errors",
    "StoreFailed": "errors",
    "StoreOptions": "options",
    "StoreSnapshot": "read.store_snapshot",
    "StoreState": "records",
    "Token": "token",
    "Topic": "records",
    "UnknownDirectory": "errors",
    "UnknownIndex": "errors",
    "Unreachable": "errors",
    "View": "read.view",
    "WaitTimeout": "errors",
    "Watch": "watch.watch",
    "WatchExpired": "errors",
    "WriteFailed": "errors",
    "WriteRefused": "errors",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
