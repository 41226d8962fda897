"""Comparison of a table with its topic."""
