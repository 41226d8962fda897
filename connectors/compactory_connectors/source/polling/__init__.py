"""Polls: conditions, readers, snapshots, the records of a table."""
