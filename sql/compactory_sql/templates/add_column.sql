-- Existing rows get the id of the adopting transaction. A constant default rewrites no row.
DO {block};

-- Replace the constant: otherwise rows that come without the trigger, as from a dump, would look as old.
ALTER TABLE {table} ALTER COLUMN updated_xid SET DEFAULT pg_catalog.pg_current_xact_id();
