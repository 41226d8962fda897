-- Rights of a source on one table.
GRANT USAGE ON SCHEMA {schema} TO {source};

GRANT SELECT ON {table} TO {source};
