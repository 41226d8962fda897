-- AFTER DELETE row trigger of a partitioned table, which its partitions take over from it, those that come later too: logs
-- what no statement trigger does, because logical replication fires none, or because a partition has none yet. A row that
-- moves to another partition may be logged with it; a source does not take a key for deleted that a row has.
CREATE FUNCTION compactory.log_row_delete() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET extra_float_digits = 1 SET IntervalStyle = postgres SET DateStyle = 'ISO, YMD' SET TimeZone = 'UTC'
SET bytea_output = hex SET lc_monetary = 'C'
AS $$
BEGIN
    IF current_setting('session_replication_role') = 'replica'
       OR EXISTS (SELECT FROM pg_partition_ancestors(TG_RELID) AS a (oid)
                   WHERE NOT EXISTS (SELECT FROM pg_trigger AS t
                                      WHERE t.tgrelid = a.oid AND t.tgname = 'zz_compactory_delete' AND t.tgenabled = 'A')) THEN
        INSERT INTO compactory.deleted_rows ("table", "row") VALUES (compactory.root_of(TG_RELID), to_jsonb(OLD));
    END IF;
    RETURN NULL;
END
$$;

-- Default privileges of the installing role may have granted more than PUBLIC's usual EXECUTE.
DO $$
DECLARE
    grantee oid;
BEGIN
    FOR grantee IN
        SELECT DISTINCT a.grantee
          FROM pg_proc AS p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
         WHERE p.oid = 'compactory.log_row_delete()'::regprocedure AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION compactory.log_row_delete() FROM %s',
                       CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END);
    END LOOP;
END
$$;
