"""Reference directories at memory speed, fed by compacted Kafka topics.

from compactory import GlobalStore

with GlobalStore("localhost:9092", ["terminal_acquirer"]) as store:
    store["terminal_acquirer"]["T1"]
"""

from compactory.async_store import AsyncGlobalStore
from compactory.directory import Directory, Index
from compactory.errors import (
    BackendFailed,
    BadRecord,
    CompactoryError,
    ConfigError,
    DecodeError,
    LeaseLost,
    NotReady,
    StaleData,
    StartTimeout,
    StoreClosed,
    StoreFailed,
    UnknownDirectory,
    UnknownIndex,
    Unreachable,
    WaitTimeout,
    WriteFailed,
    WriteRefused,
)
from compactory.lookup.view import View
from compactory.records import Entry, Partition, RecordError, StoreState
from compactory.storage.backend import Backend
from compactory.storage.rocksdb.backend import RocksDB
from compactory.store import GlobalStore
from compactory.token import Token
from compactory.writing.writer import DirectoryWriter

__all__ = [
    "AsyncGlobalStore",
    "Backend",
    "BackendFailed",
    "BadRecord",
    "CompactoryError",
    "ConfigError",
    "DecodeError",
    "Directory",
    "DirectoryWriter",
    "Entry",
    "GlobalStore",
    "Index",
    "LeaseLost",
    "NotReady",
    "Partition",
    "RecordError",
    "RocksDB",
    "StaleData",
    "StartTimeout",
    "StoreClosed",
    "StoreFailed",
    "StoreState",
    "Token",
    "UnknownDirectory",
    "UnknownIndex",
    "Unreachable",
    "View",
    "WaitTimeout",
    "WriteFailed",
    "WriteRefused",
]
