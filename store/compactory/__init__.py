"""Reference directories at memory speed, fed by compacted Kafka topics.

from compactory import GlobalStore

with GlobalStore("localhost:9092", ["terminal_acquirer"]) as store:
    store["terminal_acquirer"]["T1"]
"""

from compactory.async_store import AsyncGlobalStore
from compactory.change_subscription import ChangeSubscription
from compactory.directory import Directory, Index, Projection
from compactory.entries.change import Change
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
from compactory.ingest.loading import Loading
from compactory.lookup.digest import DirectoryDigest, RangeDigest
from compactory.lookup.iteration import IndexView
from compactory.lookup.snapshot import DirectorySnapshot, SnapshotRecord
from compactory.lookup.store_snapshot import StoreSnapshot
from compactory.lookup.view import View
from compactory.lookup.watch import Watch
from compactory.mastered.operation import Operation, Written
from compactory.mastered.writer import MasteredWriter
from compactory.records import Contested, Entry, Partition, QuarantinedRecord, StoreState, Topic
from compactory.storage.backend import Backend
from compactory.storage.memory_backend import Memory
from compactory.storage.rocksdb.backend import RocksDB
from compactory.store import GlobalStore
from compactory.token import Cursor, Token
from compactory.write_rules import WriteRules
from compactory.writing.writer import DirectoryWriter

__all__ = [
    "AsyncGlobalStore",
    "Backend",
    "BackendCorrupt",
    "BackendFailed",
    "BackendLocked",
    "BadRecord",
    "Change",
    "ChangeSubscription",
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
    "LeaseLost",
    "Loading",
    "MasteredWriter",
    "Memory",
    "NotReady",
    "Operation",
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
    "WriteRules",
    "Written",
]
