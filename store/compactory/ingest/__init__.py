"""Topics are read into tables: the engine and its two threads."""
