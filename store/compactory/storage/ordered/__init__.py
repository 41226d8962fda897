"""One ordered sequence of keys holds a topic: what RocksDB and the shared copy in LMDB have in common."""
