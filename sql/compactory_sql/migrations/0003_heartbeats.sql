-- A row for each connector that is asked for heartbeats: its source renews it at an interval and publishes what it
-- wrote, so that readers of the topic know how old what they see may be, also while no table changes.
CREATE TABLE compactory.heartbeats (
    connector    text        PRIMARY KEY,
    beats        bigint      NOT NULL,
    committed_at timestamptz NOT NULL  -- of the statement, which is a transaction of its own
) WITH (fillfactor = 50);              -- leaves room to renew within the page

-- Default privileges of the installing role may have granted rights.
DO $$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT DISTINCT a.grantee FROM pg_class AS c, aclexplode(c.relacl) AS a
         WHERE c.oid = 'compactory.heartbeats'::regclass AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('REVOKE ALL ON compactory.heartbeats FROM %s',
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END);
    END LOOP;
END
$$;
