-- Rights of the application that maintains one table. No TRUNCATE, and nothing of schema compactory: the triggers
-- run with their owner's rights.
GRANT USAGE ON SCHEMA {schema} TO {writer};

GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {writer};
