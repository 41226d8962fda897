-- Limits of types of jobs that operators have set: jobs that run at once, and starts in a window of time. A row replaces what
-- the handlers of its type declare, which executors keep in job_executors.
CREATE TABLE compactory.job_limits (
    type         text        COLLATE "C" PRIMARY KEY,
    running      integer     CHECK (running > 0),
    rate_count   integer     CHECK (rate_count > 0),
    rate_seconds integer     CHECK (rate_seconds > 0),
    since        timestamptz NOT NULL DEFAULT clock_timestamp(),
    by           text        NOT NULL,
    CHECK ((rate_count IS NULL) = (rate_seconds IS NULL) AND coalesce(running, rate_count) IS NOT NULL)
);

-- The current window of each type with a rate: when it began, and the jobs that have started in it.
CREATE TABLE compactory.job_rates (
    type     text        COLLATE "C" PRIMARY KEY,
    begun_at timestamptz NOT NULL,
    starts   bigint      NOT NULL
) WITH (fillfactor = 50);

ALTER TABLE compactory.job_executors ADD COLUMN limits jsonb NOT NULL DEFAULT '[]';

-- True for jobs that were claimed while their type had a limit. The index has no other jobs, so others pay nothing for it.
ALTER TABLE compactory.jobs ADD COLUMN limited boolean;
CREATE INDEX jobs_running_limited ON compactory.jobs_live (type) WHERE state = 'running' AND limited;

-- Default privileges of the installing role may have granted rights.
DO $$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT c.oid::regclass AS object, a.grantee
          FROM pg_class AS c, aclexplode(c.relacl) AS a
         WHERE c.relnamespace = 'compactory'::regnamespace AND c.relname IN ('job_limits', 'job_rates') AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('REVOKE ALL ON TABLE %s FROM %s', granted.object,
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END);
    END LOOP;
END
$$;
