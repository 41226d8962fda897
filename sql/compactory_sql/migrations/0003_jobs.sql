-- Jobs. A job is in jobs_live until it succeeds or is cancelled; then its row moves to jobs_finished, so that the table
-- that executors read stays small. Both are partitions of compactory.jobs, by state.
CREATE SEQUENCE compactory.jobs_id_seq;

CREATE TABLE compactory.jobs (
    id          bigint      NOT NULL DEFAULT nextval('compactory.jobs_id_seq'),
    type        text        COLLATE "C" NOT NULL,
    state       text        COLLATE "C" NOT NULL DEFAULT 'scheduled',
    "group"     text        COLLATE "C",           -- jobs of one group run one after the other, in order of ids
    origin      text,                              -- its murmur2 hash decides the partition, as for a record key
    place       integer     NOT NULL,              -- that hash without its sign; modulo the number of partitions
    payload     jsonb       NOT NULL,
    headers     jsonb,                             -- name to text: trace context, tenant
    run_at      timestamptz NOT NULL,
    last_only   boolean     NOT NULL DEFAULT false, -- cancels older scheduled jobs of its group and type
    unique_key  text,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    position    bigint,                            -- due jobs are read in this order; NULL: not due, or not scheduled
    attempt     integer     NOT NULL DEFAULT 0,
    rescues     integer     NOT NULL DEFAULT 0,    -- how often its executor died
    holds       boolean     NOT NULL DEFAULT true, -- later jobs of the group wait for it
    cancelling  boolean     NOT NULL DEFAULT false, -- to be cancelled when the running attempt ends
    executor    bigint,                            -- runs the attempt
    token       bigint,                            -- of the attempt; needed to end the job
    started_at  timestamptz,
    finished_at timestamptz,
    last_error  text,
    limited     boolean                            -- true: it had a limit when it was claimed
) PARTITION BY LIST (state);

CREATE TABLE compactory.jobs_live PARTITION OF compactory.jobs (PRIMARY KEY (id))
    FOR VALUES IN ('scheduled', 'running', 'failed')
    WITH (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0,
          autovacuum_analyze_scale_factor = 1, autovacuum_analyze_threshold = 100000);
CREATE INDEX jobs_due ON compactory.jobs_live (position) WHERE state = 'scheduled' AND position IS NOT NULL;
CREATE INDEX jobs_later ON compactory.jobs_live (run_at) WHERE state = 'scheduled' AND position IS NULL;
CREATE INDEX jobs_group ON compactory.jobs_live ("group", id) WHERE "group" IS NOT NULL;
CREATE INDEX jobs_last ON compactory.jobs_live ("group", type, id) WHERE last_only AND "group" IS NOT NULL;
CREATE INDEX jobs_running ON compactory.jobs_live (executor) WHERE state = 'running';
CREATE INDEX jobs_running_group ON compactory.jobs_live ("group") WHERE state = 'running' AND "group" IS NOT NULL;
CREATE INDEX jobs_running_limited ON compactory.jobs_live (type) WHERE state = 'running' AND limited;
CREATE INDEX jobs_failed ON compactory.jobs_live (id) WHERE state = 'failed';
CREATE UNIQUE INDEX jobs_unique ON compactory.jobs_live (type, unique_key) WHERE unique_key IS NOT NULL AND state <> 'failed';

CREATE TABLE compactory.jobs_finished PARTITION OF compactory.jobs (PRIMARY KEY (id))
    FOR VALUES IN ('succeeded', 'cancelled')
    WITH (autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX jobs_finished_at ON compactory.jobs_finished (finished_at);

-- The running executors. The heartbeat is the lease on the jobs that an executor has claimed.
CREATE TABLE compactory.job_executors (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text        NOT NULL,               -- host and process
    pool       text        NOT NULL,               -- executors that divide the partitions among them
    types      text[]      NOT NULL,
    limits     jsonb       NOT NULL DEFAULT '[]',  -- of types, as its handlers declare them
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    beat_at    timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- The last tick of each periodic job that was enqueued.
CREATE TABLE compactory.job_ticks (
    name text        PRIMARY KEY,
    tick timestamptz NOT NULL
);

-- The hash of Kafka's default partitioner, without its sign.
CREATE FUNCTION compactory.murmur2(key text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    data  bytea := convert_to(key, 'UTF8');
    size  int8  := octet_length(data);
    rest  int8  := size % 4;
    mask  CONSTANT int8 := 4294967295;
    m     CONSTANT int8 := 1540483477;
    found int8  := 2538058380 # size;
    part  int8;
BEGIN
    FOR i IN 0 .. size / 4 - 1 LOOP
        part := get_byte(data, (4 * i)::int) | (get_byte(data, (4 * i + 1)::int) << 8)
                | (get_byte(data, (4 * i + 2)::int) << 16) | (get_byte(data, (4 * i + 3)::int)::int8 << 24);
        part := part * m & mask;
        part := (part # (part >> 24)) * m & mask;
        found := (found * m & mask) # part;
    END LOOP;
    FOR i IN REVERSE rest .. 1 LOOP
        found := found # (get_byte(data, (size - rest + i - 1)::int)::int8 << (8 * (i - 1))::int);
    END LOOP;
    IF rest > 0 THEN
        found := found * m & mask;
    END IF;
    found := (found # (found >> 13)) * m & mask;
    RETURN (found # (found >> 15)) & 2147483647;
END
$$;

-- Enqueues in the caller's transaction, in the order of the arrays; returns the ids in that order. If a job with the
-- unique key exists, returns its id. The transaction gets its own id before a job's: an executor compares positions with
-- the running transactions.
CREATE FUNCTION compactory.enqueue_all(types text[], payloads text[], groups text[], origins text[], places integer[],
                                       run_ats timestamptz[], last_only boolean[], unique_keys text[], headers text[])
RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    made  int8;
    wrong text;
BEGIN
    PERFORM pg_current_xact_id();
    IF 0 < ANY (ARRAY[array_position(types, NULL), array_position(types, '')]) THEN
        RAISE EXCEPTION 'compactory.enqueue: a job needs a type' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT types[i] INTO wrong FROM generate_subscripts(types, 1) AS i WHERE last_only[i] AND groups[i] IS NULL LIMIT 1;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'compactory.enqueue: a job of type % is last_only and has no group', wrong
              USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the group whose older jobs it supersedes.';
    END IF;
    IF unique_keys IS NULL THEN
        RETURN QUERY
        INSERT INTO compactory.jobs_live AS j (id, type, "group", origin, place, payload, headers, run_at, last_only, position)
        SELECT e.id, e.type, e."group", e.origin,
               coalesce(e.place, compactory.murmur2(e.origin), hashtext(e."group") & 2147483647, (e.id & 2147483647)::int),
               e.payload::jsonb, e.headers::jsonb, e.run_at, e.last_only,
               CASE WHEN e.run_at <= clock_timestamp() THEN e.id END
          FROM (SELECT nextval('compactory.jobs_id_seq') AS id, u.type, u."group", u.origin, u.place, u.payload, u.headers,
                       coalesce(u.run_at, now()) AS run_at, coalesce(u.last_only, false) AS last_only
                  FROM unnest(types, payloads, groups, origins, places, run_ats, enqueue_all.last_only, enqueue_all.headers)
                       AS u (type, payload, "group", origin, place, run_at, last_only, headers)) AS e
        RETURNING j.id;
    ELSE
        FOR i IN 1 .. cardinality(types) LOOP
            made := NULL;
            WHILE made IS NULL LOOP
                INSERT INTO compactory.jobs_live AS j (id, type, "group", origin, place, payload, headers, run_at, last_only,
                                                       unique_key, position)
                SELECT e.id, types[i], groups[i], origins[i],
                       coalesce(places[i], compactory.murmur2(origins[i]), hashtext(groups[i]) & 2147483647,
                                (e.id & 2147483647)::int),
                       payloads[i]::jsonb, headers[i]::jsonb, e.run_at, coalesce(last_only[i], false), unique_keys[i],
                       CASE WHEN e.run_at <= clock_timestamp() THEN e.id END
                  FROM (SELECT nextval('compactory.jobs_id_seq') AS id, coalesce(run_ats[i], now()) AS run_at) AS e
                ON CONFLICT (type, unique_key) WHERE unique_key IS NOT NULL AND state <> 'failed' DO NOTHING
                RETURNING j.id INTO made;
                IF made IS NULL THEN
                    SELECT j.id INTO made FROM compactory.jobs_live AS j
                     WHERE j.type = types[i] AND j.unique_key = unique_keys[i] AND j.state <> 'failed';
                END IF;
            END LOOP;
            RETURN NEXT made;
        END LOOP;
    END IF;
    IF NOT pg_try_advisory_xact_lock_shared(1129140298, 0)
       AND coalesce(current_setting('compactory.notify', true), '') <> 'off' THEN
        PERFORM pg_notify('compactory_jobs', '');
    END IF;
END
$$;

CREATE FUNCTION compactory.enqueue(type text, payload jsonb DEFAULT '{}', "group" text DEFAULT NULL, origin text DEFAULT NULL,
                                   run_at timestamptz DEFAULT now(), last_only boolean DEFAULT false,
                                   unique_key text DEFAULT NULL, headers jsonb DEFAULT NULL) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
SELECT compactory.enqueue_all(ARRAY[type], ARRAY[coalesce(payload, 'null')::text], ARRAY["group"], ARRAY[origin], NULL,
                              ARRAY[run_at], ARRAY[last_only], ARRAY[unique_key], ARRAY[headers::text])
$$;

-- Limits of jobs that operators have set: jobs that run at once, and starts in a window of time. The row of a type replaces
-- what its handlers declare, which executors keep in job_executors.
CREATE TABLE compactory.job_limits (
    kind         text        COLLATE "C" NOT NULL CHECK (kind IN ('type', 'group', 'tenant')),
    name         text        COLLATE "C" NOT NULL,  -- the type, the prefix of groups, or the tenant
    running      integer     CHECK (running > 0),
    rate_count   integer     CHECK (rate_count > 0),
    rate_seconds integer     CHECK (rate_seconds > 0),
    since        timestamptz NOT NULL DEFAULT clock_timestamp(),
    by           text        NOT NULL,
    PRIMARY KEY (kind, name),
    CHECK ((rate_count IS NULL) = (rate_seconds IS NULL) AND coalesce(running, rate_count) IS NOT NULL)
);

-- The current window of each limit with a rate: when it began, and the jobs that have started in it.
CREATE TABLE compactory.job_rates (
    kind     text        COLLATE "C" NOT NULL,
    name     text        COLLATE "C" NOT NULL,
    begun_at timestamptz NOT NULL,
    starts   bigint      NOT NULL,
    PRIMARY KEY (kind, name)
) WITH (fillfactor = 50);
