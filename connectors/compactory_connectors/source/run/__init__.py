"""The loop of a source, its schedule and its worker."""
