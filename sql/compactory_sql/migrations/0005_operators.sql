-- What operators have paused. Running processes are notified of a change, and read the rows of their part again.
CREATE TABLE compactory.paused (
    part  text        COLLATE "C" NOT NULL CHECK (part IN ('jobs', 'job-groups', 'outbox', 'sink')),
    name  text        COLLATE "C" NOT NULL,            -- a type or a group of jobs, a topic, a sink
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    by    text        NOT NULL,
    PRIMARY KEY (part, name)
);

-- What operators have done: a line for each act, written in its transaction by compactory.log_act.
CREATE TABLE compactory.operator_log (
    id     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    who    text        NOT NULL,                       -- the person, and the role with its database
    part   text        COLLATE "C" NOT NULL,
    action text        COLLATE "C" NOT NULL,
    object jsonb       NOT NULL,                       -- ids, a filter or a name
    count  bigint      NOT NULL
);

CREATE INDEX operator_log_at ON compactory.operator_log (at);

-- Writes a line, and deletes some of those that are older than 90 days. It runs with its owner's rights, so that no operator
-- needs a right to change the log.
CREATE FUNCTION compactory.log_act(part text, action text, object jsonb, count bigint, by text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DELETE FROM compactory.operator_log
 WHERE id IN (SELECT id FROM compactory.operator_log WHERE at < clock_timestamp() - interval '90 days'
               ORDER BY at LIMIT 1000 FOR UPDATE SKIP LOCKED);
INSERT INTO compactory.operator_log (who, part, action, object, count)
VALUES (format('%s (%s@%s)', by, session_user, current_database()), part, action, object, count);
$$;

-- Only the owner may read the tables and call the functions; triggers need no right to fire. Every grant is revoked, because
-- default privileges of the installing role may have granted more than EXECUTE to PUBLIC.
DO $$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT DISTINCT object, a.grantee
          FROM (SELECT 'SCHEMA compactory' AS object, nspowner AS owner, coalesce(nspacl, acldefault('n', nspowner)) AS acl
                  FROM pg_namespace WHERE nspname = 'compactory'
                UNION ALL
                SELECT 'SCHEMA ' || nspname, nspowner, coalesce(nspacl, acldefault('n', nspowner))
                  FROM pg_namespace WHERE nspname = 'compactory_staging'
                UNION ALL
                SELECT CASE relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || oid::regclass, relowner, relacl
                  FROM pg_class WHERE relnamespace = 'compactory'::regnamespace AND relkind IN ('r', 'p', 'S')
                UNION ALL
                SELECT 'FUNCTION ' || oid::regprocedure, proowner, coalesce(proacl, acldefault('f', proowner))
                  FROM pg_proc WHERE pronamespace = 'compactory'::regnamespace) AS objects,
               aclexplode(acl) AS a
         WHERE a.grantee <> owner
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s', granted.object,
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END);
    END LOOP;
END
$$;
