"""Faults of rows, and the treatment of rows that have some."""
