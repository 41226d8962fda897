"""One poll of a table: the rows that are due become batches of records."""
