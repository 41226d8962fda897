"""Where entries are kept: in memory or in RocksDB, behind one seam."""
