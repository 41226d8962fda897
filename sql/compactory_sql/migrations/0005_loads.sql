-- Which loads were done, a row for each: written in the transaction that makes a load's rows visible, so that a load that
-- is run again after it was cut off does nothing where it had come to its end.
CREATE TABLE compactory.loads (
    "table"     regclass    NOT NULL,
    id          text        NOT NULL,  -- as whoever loads has named it
    changed     jsonb       NOT NULL,  -- numbers of keys by what was done to them
    finished_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY ("table", id)
);

-- Rows on their way into tables. What is left of a load that was killed is dropped by the next one.
CREATE SCHEMA compactory_staging;

-- Default privileges of the installing role may have granted rights.
DO $$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT DISTINCT object, a.grantee
          FROM (SELECT 'TABLE compactory.loads' AS object, relowner AS owner, relacl AS acl
                  FROM pg_class WHERE oid = 'compactory.loads'::regclass
                UNION ALL
                SELECT 'SCHEMA compactory_staging', nspowner, nspacl
                  FROM pg_namespace WHERE nspname = 'compactory_staging') AS objects,
               aclexplode(acl) AS a
         WHERE a.grantee <> owner
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s', granted.object,
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END);
    END LOOP;
END
$$;
