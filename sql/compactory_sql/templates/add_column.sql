-- Existing rows get the id of the transaction that adopts the table. It is a constant, so that none is rewritten.
DO {block};

-- The constant must not stay: rows of a restored dump, or written past the trigger, would claim to be as old.
ALTER TABLE {table} ALTER COLUMN updated_xid SET DEFAULT pg_catalog.pg_current_xact_id();
