"""The backend that keeps directories on disk, in RocksDB: for those that are larger than memory, and for fast restarts.

Only `database` and `tuning` touch ``rocksdict``, when a store starts.
"""
