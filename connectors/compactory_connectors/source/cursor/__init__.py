"""What was seen of a table, as pure values."""
