"""The backend that keeps directories on disk, in RocksDB: for those that are larger than memory, and for fast restarts.

Only `compactory.storage.rocksdb.database` and `compactory.storage.rocksdb.tuning` touch ``rocksdict``, when a store starts.
"""
