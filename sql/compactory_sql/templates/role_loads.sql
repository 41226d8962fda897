-- Rights of the writer to load files: staging tables and the list of loads, once they exist.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_tables WHERE schemaname = 'compactory' AND tablename = 'loads') THEN
        GRANT USAGE ON SCHEMA compactory TO {writer};
        GRANT SELECT, INSERT, DELETE ON compactory.loads TO {writer};
        GRANT USAGE, CREATE ON SCHEMA compactory_staging TO {writer};
    END IF;
END
$$;
