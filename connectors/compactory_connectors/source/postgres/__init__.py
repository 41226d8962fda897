"""Postgres for the source: its connection, transactions, cursors, and the catalogue with relations and rights."""
