"""Whether a topic has what its tables have, while both change: what differs for good, key by key, and its repair."""
