"""The offset of a table: what was seen of it, and why rows are due again. Pure values."""
