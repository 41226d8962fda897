"""The backends that keep entries, in memory or in RocksDB, behind one interface."""
