-- Rows from another server may have ids that this server has not assigned yet: they would look new at every poll.
UPDATE {table} SET updated_xid = pg_catalog.pg_current_xact_id()
 WHERE updated_xid >= pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot());

-- The same for the log of its deleted rows.
UPDATE compactory.deleted_rows SET xid = pg_catalog.pg_current_xact_id()
 WHERE "table" = {table_text}::pg_catalog.regclass
   AND xid >= pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot());
