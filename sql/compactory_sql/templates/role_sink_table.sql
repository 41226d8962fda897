-- A table that is written; upsert and delete look rows up.
GRANT USAGE ON SCHEMA {schema} TO {sink};

GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {sink};
