-- So a source also finds a row that is inserted without firing the trigger.
ALTER TABLE {table} ALTER COLUMN updated_xid SET DEFAULT pg_catalog.pg_current_xact_id();
