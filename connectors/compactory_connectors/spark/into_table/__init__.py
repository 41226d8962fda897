"""A load into a Postgres table: staged beside it, compared, merged in one transaction."""
