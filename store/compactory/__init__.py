"""Reference directories at memory speed, fed by compacted Kafka topics.

from compactory import GlobalStore

with GlobalStore("localhost:9092", ["terminal_acquirer"]) as store:
    store["terminal_acquirer"]["T1"]
"""

from compactory.async_store import AsyncGlobalStore
from compactory.directory import Directory, Index, Projection
from compactory.errors import (
    BackendCorrupt,
    BackendFailed,
    BackendLocked,
    BadRecord,
    CompactoryError,
    ConfigError,
    Conflict,
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
    "Change",
    "CompactoryError",
    "ConfigError",
    "Conflict",
    "Contested",
    "Cursor",
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
