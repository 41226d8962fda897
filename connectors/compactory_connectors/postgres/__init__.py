"""Postgres for every part: URLs, connections, errors, snapshots, notifications."""
