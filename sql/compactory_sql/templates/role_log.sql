-- The log of hard-deleted rows, once it is there.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_namespace WHERE nspname = 'compactory') THEN
        GRANT USAGE ON SCHEMA compactory TO {source};
        GRANT SELECT ON compactory.deleted_rows TO {source};
    END IF;
END
$$;
