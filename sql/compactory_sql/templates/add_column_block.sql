 BEGIN
    EXECUTE pg_catalog.format('ALTER TABLE %s ADD COLUMN updated_xid xid8 NOT NULL DEFAULT %L',
                              {table_text}, pg_catalog.pg_current_xact_id());
END
