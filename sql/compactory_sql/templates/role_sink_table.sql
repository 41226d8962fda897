-- Rights on a table that the sink writes. Upsert and delete also read rows.
GRANT USAGE ON SCHEMA {schema} TO {sink};

GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {sink};
