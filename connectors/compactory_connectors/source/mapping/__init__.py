"""From a row to a record's key and value: column types, transforms, key parts, functions in SQL."""
