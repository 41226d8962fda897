-- Rights of the application that maintains one table. It needs none on schema compactory: the triggers run with the
-- rights of their owner.
GRANT USAGE ON SCHEMA {schema} TO {writer};

GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {writer};
