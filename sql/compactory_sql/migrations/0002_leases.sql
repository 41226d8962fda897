-- Who publishes which connector: a row for each. A holder renews it every second, and one who finds that it was not
-- renewed for some seconds, by this server's clock, takes it over. What keeps a holder that wakes up late from
-- publishing is not this row but the transactional id in Kafka, which its successor has taken over by then.
CREATE TABLE compactory.leases (
    connector  text        PRIMARY KEY,
    holder     uuid,                  -- of one process; NULL once it was given back
    host       text        NOT NULL,
    pid        integer     NOT NULL,
    epoch      bigint      NOT NULL,  -- how often it has changed hands
    taken_at   timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL
) WITH (fillfactor = 50);             -- leaves room to renew within the page

-- Default privileges of the installing role may have granted rights.
DO $$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT DISTINCT a.grantee FROM pg_class AS c, aclexplode(c.relacl) AS a
         WHERE c.oid = 'compactory.leases'::regclass AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('REVOKE ALL ON compactory.leases FROM %s',
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END);
    END LOOP;
END
$$;
