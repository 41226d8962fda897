-- No comparison finds NULL: a source would never read such a row.
UPDATE {table} SET updated_xid = pg_catalog.pg_current_xact_id() WHERE updated_xid IS NULL;

-- Allow no new ones.
ALTER TABLE {table} ALTER COLUMN updated_xid SET NOT NULL;
