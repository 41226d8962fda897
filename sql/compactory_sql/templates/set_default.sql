-- A row that is inserted past the trigger is found all the same.
ALTER TABLE {table} ALTER COLUMN updated_xid SET DEFAULT pg_catalog.pg_current_xact_id();
