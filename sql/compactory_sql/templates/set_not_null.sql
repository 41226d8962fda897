-- No comparison finds NULL: such a row would be missed for ever.
UPDATE {table} SET updated_xid = pg_catalog.pg_current_xact_id() WHERE updated_xid IS NULL;

-- And it must not come back.
ALTER TABLE {table} ALTER COLUMN updated_xid SET NOT NULL;
