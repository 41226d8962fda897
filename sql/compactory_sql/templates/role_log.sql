-- Rights on the log of deleted rows, the lease and heartbeats, once they exist.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_namespace WHERE nspname = 'compactory') THEN
        GRANT USAGE ON SCHEMA compactory TO {source};
        GRANT SELECT ON compactory.deleted_rows TO {source};
    END IF;
    IF EXISTS (SELECT FROM pg_tables WHERE schemaname = 'compactory' AND tablename = 'leases') THEN
        GRANT SELECT, INSERT, UPDATE ON compactory.leases TO {source};
    END IF;
    IF EXISTS (SELECT FROM pg_tables WHERE schemaname = 'compactory' AND tablename = 'heartbeats') THEN
        GRANT SELECT, INSERT, UPDATE ON compactory.heartbeats TO {source};
    END IF;
END
$$;
