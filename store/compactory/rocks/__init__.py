"""The backend that keeps directories on disk, in RocksDB: for those that are larger than memory, and for fast restarts.

Only `compactory.rocks.database` and `compactory.rocks.tuning` touch ``rocksdict``, when a store starts.
"""
