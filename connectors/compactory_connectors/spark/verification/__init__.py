"""Table, topic, exported files and running stores compared by digests, then key by key."""
