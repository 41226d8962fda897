"""One poll of a table becomes batches of records."""
