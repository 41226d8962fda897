"""Status, metrics and orders of a running source."""
