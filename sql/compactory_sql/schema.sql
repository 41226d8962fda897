-- Compactory creates its objects in a schema of its own. In a user's schemas it only adds columns, indexes and triggers to
-- adopted tables.
CREATE SCHEMA compactory;

-- The applied migrations. The checksum reveals a migration that was changed after it was applied.
CREATE TABLE compactory.migrations (
    version    integer     PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Deleted rows of adopted tables, with all columns: a connector's transforms may make the record key from any of them.
-- regclass, not oid, so that a dump contains the table's name.
CREATE TABLE compactory.deleted_rows (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    "table"    regclass    NOT NULL,
    "row"      jsonb       NOT NULL,
    xid        xid8        NOT NULL DEFAULT pg_current_xact_id(),
    deleted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- A poll reads the rows of one table from a transaction id on.
CREATE INDEX deleted_rows_table_xid_idx ON compactory.deleted_rows ("table", xid);

-- The lease of each connector: its holder publishes. The holder renews it every second. When it has expired, by this
-- server's clock, a standby takes it. A former holder that wakes up late is kept from publishing not by this row but by
-- Kafka: its successor has taken over the transactional id.
CREATE TABLE compactory.leases (
    connector  text        PRIMARY KEY,
    holder     uuid,                  -- of one process; NULL if nobody has the lease
    host       text        NOT NULL,
    pid        integer     NOT NULL,
    epoch      bigint      NOT NULL,  -- how often the holder has changed
    taken_at   timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL,
    sessions   uuid[]      NOT NULL DEFAULT '{}'  -- those that stored offsets name, and the last one
) WITH (fillfactor = 50);             -- leaves room to renew within the page

-- Heartbeats of connectors. A source renews its row at an interval and publishes it, so that readers of the topic know the
-- age of their data also while no table changes.
CREATE TABLE compactory.heartbeats (
    connector    text        PRIMARY KEY,
    beats        bigint      NOT NULL,
    committed_at timestamptz NOT NULL  -- of the statement, which is a transaction of its own
) WITH (fillfactor = 50);              -- leaves room to renew within the page

-- Finished loads. The row is written in the load's own transaction, so that a load that is started again with the same id
-- changes nothing if it had committed.
CREATE TABLE compactory.loads (
    "table"     regclass    NOT NULL,
    id          text        NOT NULL,  -- chosen by the caller
    changed     jsonb       NOT NULL,  -- numbers of keys by kind of change
    finished_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY ("table", id)
);

-- Staging tables of loads. The next load drops those of killed loads.
CREATE SCHEMA compactory_staging;

-- The table that a connector polls: the root of a partition tree, else the table itself.
CREATE FUNCTION compactory.root_of(relation oid) RETURNS regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT coalesce(pg_partition_root(relation), relation::regclass) $$;

-- BEFORE UPDATE trigger. Its WHEN clause compares the binary images of the key columns: a key that is equal for Postgres
-- (citext, numeric 1.0 and 1.00) may be another key for Kafka, and the entry of the old key would stay for ever.
CREATE FUNCTION compactory.refuse_key_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    settings jsonb := TG_ARGV[0];
    immutable text[] := ARRAY(SELECT jsonb_array_elements_text(settings -> 'key')) || (settings ->> 'id');
    changed text;
BEGIN
    SELECT string_agg(name, ', ') INTO changed
      FROM (SELECT DISTINCT name FROM unnest(immutable) AS name ORDER BY name) AS names
     WHERE to_jsonb(OLD) -> name IS DISTINCT FROM to_jsonb(NEW) -> name;
    RAISE EXCEPTION '% cannot be changed', coalesce(changed, array_to_string(immutable, ', '))
        USING DETAIL = format('It is part of the record key of %s.', compactory.root_of(TG_RELID)),
              HINT = 'Make the row inactive and insert a new one.';
END
$$;

-- AFTER DELETE row trigger of a table without partitions: refuses active rows and logs the others. AFTER, because a BEFORE
-- trigger of the application may keep the row. The formats of values are fixed, whatever the deleting session has set: a
-- number with fewer digits would be another record key, and dates in another style could not be read.
CREATE FUNCTION compactory.log_delete() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET extra_float_digits = 1 SET IntervalStyle = postgres SET DateStyle = 'ISO, YMD' SET TimeZone = 'UTC'
SET bytea_output = hex SET lc_monetary = 'C'
AS $$
DECLARE
    settings jsonb := TG_ARGV[0];
    active text := settings ->> 'active';
    gone jsonb := to_jsonb(OLD);
BEGIN
    IF gone -> active <> 'false' THEN
        RAISE EXCEPTION
            'Active settings (% = true) can not be deleted. Make it inactive firstly (% = false)', active, active;
    END IF;
    INSERT INTO compactory.deleted_rows ("table", "row") VALUES (TG_RELID, gone);
    RETURN NULL;
END
$$;

-- AFTER DELETE statement trigger of a partitioned table and of its partitions: the same for the rows in the transition
-- table "gone". A row trigger would also fire for a row that an UPDATE moves to another partition, and could not tell it
-- from a deleted one.
CREATE FUNCTION compactory.log_deletes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET extra_float_digits = 1 SET IntervalStyle = postgres SET DateStyle = 'ISO, YMD' SET TimeZone = 'UTC'
SET bytea_output = hex SET lc_monetary = 'C'
AS $$
DECLARE
    settings jsonb := TG_ARGV[0];
    active text := settings ->> 'active';
BEGIN
    IF EXISTS (SELECT FROM gone WHERE to_jsonb(gone) -> active <> 'false') THEN
        RAISE EXCEPTION
            'Active settings (% = true) can not be deleted. Make it inactive firstly (% = false)', active, active;
    END IF;
    INSERT INTO compactory.deleted_rows ("table", "row") SELECT compactory.root_of(TG_RELID), to_jsonb(gone) FROM gone;
    RETURN NULL;
END
$$;

-- AFTER DELETE row trigger of a partitioned table. Postgres clones it to present and future partitions. It logs what no
-- statement trigger logs, because logical replication fires none or a partition has none yet. It may log a moved row too;
-- a source does not delete a key that a living row has.
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

-- BEFORE TRUNCATE trigger: refuses while there are active rows, and logs all others. TRUNCATE of a partitioned table also
-- fires the triggers of its leaves, which log their own rows. The root's trigger logs the rows of leaves without one.
CREATE FUNCTION compactory.log_truncate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET row_security = off
SET extra_float_digits = 1 SET IntervalStyle = postgres SET DateStyle = 'ISO, YMD' SET TimeZone = 'UTC'
SET bytea_output = hex SET lc_monetary = 'C'
AS $$
DECLARE
    settings jsonb := TG_ARGV[0];
    active text := settings ->> 'active';
    root regclass := compactory.root_of(TG_RELID);
    leaf regclass;
    refused boolean;
BEGIN
    -- An older snapshot would not show rows that were committed since, and TRUNCATE removes those as well.
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'TRUNCATE of % needs isolation level READ COMMITTED', root
            USING DETAIL = 'Every row is logged, and this transaction may not see them all.';
    END IF;
    FOR leaf IN
        SELECT c.oid FROM pg_class AS c
         WHERE c.oid = TG_RELID AND c.relkind = 'r'
            OR c.oid IN (SELECT relid FROM pg_partition_tree(TG_RELID) WHERE isleaf AND relid <> TG_RELID)
               AND NOT EXISTS (SELECT FROM pg_trigger AS t
                                WHERE t.tgrelid = c.oid AND t.tgname = TG_NAME AND t.tgenabled = 'A')
    LOOP
        IF active IS NOT NULL THEN
            EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s AS t WHERE t.%I IS NOT FALSE)', leaf, active) INTO refused;
            IF refused THEN
                RAISE EXCEPTION
                    'Active settings (% = true) can not be deleted. Make it inactive firstly (% = false)', active, active;
            END IF;
        END IF;
        EXECUTE format('INSERT INTO compactory.deleted_rows ("table", "row") SELECT $1, to_jsonb(t) FROM ONLY %s AS t', leaf)
          USING root;
    END LOOP;
    RETURN NULL;
END
$$;

-- AFTER statement trigger: wakes a sleeping source. A source holds the lock exclusively only while it sleeps, so a busy
-- system sends no NOTIFY (commits with NOTIFY queue on one lock of the whole cluster). The class of the lock is
-- compactory_sql.WAKEUP_LOCK_CLASS; its key has the bits of the root table's oid, which may not fit an integer.
CREATE FUNCTION compactory.wake_source() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    root oid := coalesce(pg_partition_root(TG_RELID), TG_RELID);
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(1129140311, root::int8::bit(32)::int4) THEN
        PERFORM pg_notify('compactory_source', root::text);
    END IF;
    RETURN NULL;
END
$$;

-- Messages of the outbox: inserted in a transaction of the application, deleted once Kafka has them. Rows are never
-- updated. The one index is used to read a topic in order of ids and to delete by exact id.
CREATE TABLE compactory.kafka_messages (
    id            bigint      GENERATED ALWAYS AS IDENTITY,
    topic         text        COLLATE "C" NOT NULL,
    key           bytea,
    payload       bytea,      -- NULL: a tombstone
    partition_key text,       -- decides the partition in place of the key
    headers       jsonb,      -- name to text, or to {"base64": "…"}, or to null
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic, id)
) WITH (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 1, autovacuum_analyze_threshold = 100000,
        toast.autovacuum_vacuum_threshold = 10000, toast.autovacuum_vacuum_scale_factor = 0);

-- Messages that Kafka refused, with the reason; and messages that wait for a refused one of their key, without a reason.
CREATE TABLE compactory.kafka_failed_messages (
    id            bigint      NOT NULL,
    topic         text        COLLATE "C" NOT NULL,
    key           bytea,
    payload       bytea,
    partition_key text,
    headers       jsonb,
    created_at    timestamptz NOT NULL,
    failed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason        text,                            -- NULL: waits for an earlier one
    holds_key     boolean     NOT NULL,            -- later messages of the key wait
    PRIMARY KEY (topic, id)
);
CREATE INDEX ON compactory.kafka_failed_messages (topic, key) WHERE holds_key;

-- A row for each topic, with the lock of the relay's thread that sends it.
CREATE TABLE compactory.kafka_topic_info (
    topic      text        COLLATE "C" PRIMARY KEY,
    locked_by  text,                               -- host, process and thread; suffix of the transactional id
    locked_at  timestamptz,                        -- renewed while a batch is sent
    error      boolean     NOT NULL DEFAULT false, -- pauses for a minute
    retries    integer     NOT NULL DEFAULT 0,
    error_at   timestamptz,
    last_error text,
    reached    bigint      NOT NULL DEFAULT 0,     -- all messages up to this id are sent
    rewinds    bigint      NOT NULL DEFAULT 0,     -- how often "reached" was set back because messages came back
    max_bytes  integer                             -- max.message.bytes of the topic, once a relay has asked for it
) WITH (fillfactor = 50);                          -- leaves room to renew within the page

-- Publishes in the caller's transaction; returns the id, which is also the record's header compactory-message-id. The
-- transaction gets its own id before the message's: a relay compares message ids with the running transactions.
CREATE FUNCTION compactory.publish(topic text, payload bytea, key bytea DEFAULT NULL, partition_key text DEFAULT NULL,
                                   headers jsonb DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    size  int8;
    most  int4;
    made  int8;
BEGIN
    -- Most messages pass this one expression, for which nothing has to be told: a statement here costs a third of the INSERT.
    IF (topic <> '' AND topic NOT IN ('.', '..') AND octet_length(topic) < 250 AND topic COLLATE "C" !~ '[^A-Za-z0-9._-]'
        AND (payload IS NOT NULL OR key IS NOT NULL) AND headers IS NULL
        AND coalesce(octet_length(payload), 0) + coalesce(octet_length(key), 0) <= 16384
        AND pg_try_advisory_xact_lock_shared(1129140303, 0)) IS NOT TRUE THEN
        IF topic IS NULL OR topic IN ('', '.', '..') OR octet_length(topic) > 249
           OR topic COLLATE "C" ~ '[^A-Za-z0-9._-]' THEN
            RAISE EXCEPTION 'compactory.publish: % is not a name that a Kafka topic can have', coalesce(quote_literal(topic), 'NULL')
                  USING ERRCODE = 'invalid_parameter_value', HINT = 'Use 1 to 249 letters, digits, dots, underscores and hyphens.';
        END IF;
        IF payload IS NULL AND key IS NULL THEN
            RAISE EXCEPTION 'compactory.publish: a message to % has neither payload nor key', topic
                  USING ERRCODE = 'invalid_parameter_value', HINT = 'A NULL payload is a tombstone: give the key that it removes.';
        END IF;
        IF headers IS NOT NULL AND (jsonb_typeof(headers) <> 'object' OR EXISTS (
            SELECT FROM jsonb_each(CASE jsonb_typeof(headers) WHEN 'object' THEN headers ELSE '{}' END) AS h
             WHERE h.key = '' OR h.key = 'compactory-message-id'
                OR NOT (jsonb_typeof(h.value) IN ('string', 'null')
                        OR coalesce(jsonb_typeof(h.value -> 'base64') = 'string'  -- encode() breaks it into lines
                                    AND translate(h.value ->> 'base64', E' \t\r\n', '')
                                        ~ '^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$', false)))) THEN
            RAISE EXCEPTION 'compactory.publish: the headers of a message to % are not usable', topic
                  USING ERRCODE = 'invalid_parameter_value',
                        HINT = 'Give an object of names and texts, nulls or {"base64": "…"}; compactory-message-id is taken.';
        END IF;
        size := coalesce(octet_length(payload), 0) + coalesce(octet_length(key), 0);
        IF size > 16384 THEN
            SELECT i.max_bytes INTO most FROM compactory.kafka_topic_info AS i WHERE i.topic = publish.topic;
            IF size > most THEN
                RAISE EXCEPTION 'compactory.publish: a message of % bytes is too large for topic %, which takes %', size, topic, most
                      USING ERRCODE = 'program_limit_exceeded', HINT = 'Make it smaller, or raise max.message.bytes of the topic.';
            ELSIF most IS NULL AND size > 1000000 THEN
                RAISE WARNING 'compactory.publish: a message of % bytes may be too large for topic %: no relay has asked yet', size, topic
                      USING HINT = 'Kafka takes 1,048,588 bytes unless max.message.bytes of the topic says otherwise.';
            END IF;
        END IF;
        IF NOT pg_try_advisory_xact_lock_shared(1129140303, 0)
           AND coalesce(current_setting('compactory.notify', true), '') <> 'off' THEN
            PERFORM pg_notify('compactory_outbox', '');
        END IF;
    END IF;
    -- the transaction's id before the message's
    INSERT INTO compactory.kafka_messages (id, topic, key, payload, partition_key, headers) OVERRIDING SYSTEM VALUE
         VALUES (CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('compactory.kafka_messages_id_seq') END,
                 topic, key, payload, partition_key, headers) RETURNING id INTO made;
    RETURN made;
END
$$;

CREATE FUNCTION compactory.publish(topic text, payload text, key text DEFAULT NULL, partition_key text DEFAULT NULL,
                                   headers jsonb DEFAULT NULL) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT compactory.publish(topic, convert_to(payload, 'UTF8'), convert_to(key, 'UTF8'), partition_key, headers) $$;

CREATE FUNCTION compactory.publish(topic text, payload bytea, key text, partition_key text DEFAULT NULL,
                                   headers jsonb DEFAULT NULL) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT compactory.publish(topic, payload, convert_to(key, 'UTF8'), partition_key, headers) $$;

CREATE FUNCTION compactory.publish(topic text, payload text, key bytea, partition_key text DEFAULT NULL,
                                   headers jsonb DEFAULT NULL) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT compactory.publish(topic, convert_to(payload, 'UTF8'), key, partition_key, headers) $$;

-- Messages that are sent at a later time. A relay moves them to kafka_messages when they are due.
CREATE TABLE compactory.kafka_scheduled_messages (
    id            bigint      NOT NULL,  -- as publish_at returned it; the record's header has it
    topic         text        COLLATE "C" NOT NULL,
    key           bytea,
    payload       bytea,
    partition_key text,
    headers       jsonb,
    created_at    timestamptz NOT NULL,
    deliver_at    timestamptz NOT NULL,
    PRIMARY KEY (topic, id)
) WITH (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0);
CREATE INDEX ON compactory.kafka_scheduled_messages (deliver_at, id);

-- Publishes as compactory.publish does. The message is sent at the given time; a time in the past or NULL: at once.
CREATE FUNCTION compactory.publish_at(deliver_at timestamptz, topic text, payload bytea, key bytea DEFAULT NULL,
                                      partition_key text DEFAULT NULL, headers jsonb DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    message_id int8;
BEGIN
    IF NOT isfinite(deliver_at) THEN
        RAISE EXCEPTION 'compactory.publish_at: a message to % has the time %', topic, deliver_at
              USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a finite time, or NULL to send the message at once.';
    END IF;
    message_id := compactory.publish(topic, payload, key, partition_key, headers);
    IF deliver_at > clock_timestamp() THEN
        WITH moved AS (DELETE FROM compactory.kafka_messages AS m
                        WHERE m.topic = publish_at.topic AND m.id = message_id RETURNING m.*)
        INSERT INTO compactory.kafka_scheduled_messages
        SELECT m.id, m.topic, m.key, m.payload, m.partition_key, m.headers, m.created_at, publish_at.deliver_at FROM moved AS m;
    END IF;
    RETURN message_id;
END
$$;

CREATE FUNCTION compactory.publish_at(deliver_at timestamptz, topic text, payload text, key text DEFAULT NULL,
                                      partition_key text DEFAULT NULL, headers jsonb DEFAULT NULL) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT compactory.publish_at(deliver_at, topic, convert_to(payload, 'UTF8'), convert_to(key, 'UTF8'), partition_key, headers) $$;

CREATE FUNCTION compactory.publish_at(deliver_at timestamptz, topic text, payload jsonb, key text DEFAULT NULL,
                                      partition_key text DEFAULT NULL, headers jsonb DEFAULT NULL) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT compactory.publish_at(deliver_at, topic, payload::text, key, partition_key, headers) $$;

CREATE FUNCTION compactory.publish(topic text, payload jsonb, key text DEFAULT NULL, partition_key text DEFAULT NULL,
                                   headers jsonb DEFAULT NULL) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT compactory.publish(topic, payload::text, key, partition_key, headers) $$;

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
    last_error  text
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

-- The offset of each partition that a sink writes to this database. A sink locks the row and advances the offset in the
-- transaction that writes the records, so that both are committed or neither.
CREATE TABLE compactory.kafka_partitions (
    sink       text        COLLATE "C" NOT NULL,
    topic      text        COLLATE "C" NOT NULL,
    partition  integer     NOT NULL,
    topic_id   text,                                   -- changes when the topic is created again
    "offset"   bigint,                                 -- of the next record; NULL: never used
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    record_end bigint,                                 -- after the last record, before marks of transactions
    leader_epoch integer,                              -- of that record: tells whether the log was cut off before it
    epoch_offset bigint,                               -- the "offset" for which these two count
    PRIMARY KEY (sink, topic, partition)
) WITH (fillfactor = 50);                              -- leaves room to move the offset within the page

-- Parts of a partition that are written in parallel. A part has some of the keys, and is written up to "until". Rows are
-- deleted when all parts have reached one offset.
CREATE TABLE compactory.kafka_partition_parts (
    sink      text    COLLATE "C" NOT NULL,
    topic     text    COLLATE "C" NOT NULL,
    partition integer NOT NULL,
    part      integer NOT NULL,                        -- of the keys, by their hash
    parts     integer NOT NULL,
    until     bigint  NOT NULL,
    PRIMARY KEY (sink, topic, partition, part)
);

-- Records that a sink could not write, with the reason; and records that wait for one of their key, without a reason.
CREATE TABLE compactory.kafka_failed_records (
    sink         text        COLLATE "C" NOT NULL,
    topic        text        COLLATE "C" NOT NULL,
    partition    integer     NOT NULL,
    "offset"     bigint      NOT NULL,
    key          bytea,
    value        bytea,
    headers      jsonb,                                -- pairs of name and base64, or null
    timestamp_ms bigint,
    failed_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason       text,                                 -- NULL: waits for an earlier one
    again        boolean     NOT NULL DEFAULT false,   -- an operator has requested a retry
    PRIMARY KEY (sink, topic, partition, "offset")
);

-- A running sink looks every second for records to retry, and takes a few of them at a time with those of their keys.
CREATE INDEX kafka_failed_records_again ON compactory.kafka_failed_records (sink, topic, partition, "offset") WHERE again;
CREATE INDEX kafka_failed_records_key ON compactory.kafka_failed_records USING hash (key);

-- Ids of messages that a reader has handled, so that it skips duplicates. Kept for a week.
CREATE TABLE compactory.kafka_handled_messages (
    reader     text        COLLATE "C" NOT NULL,       -- a sink, or another consumer
    topic      text        COLLATE "C" NOT NULL,
    id         text        COLLATE "C" NOT NULL,
    handled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (reader, topic, id)
);

CREATE INDEX ON compactory.kafka_handled_messages (handled_at);

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

-- Limits of jobs that operators have set: jobs that run at once, and starts in a window of time. The row of a type replaces
-- what its handlers declare, which executors keep in job_executors.
CREATE TABLE compactory.job_limits (
    running      integer     CHECK (running > 0),
    rate_count   integer     CHECK (rate_count > 0),
    rate_seconds integer     CHECK (rate_seconds > 0),
    since        timestamptz NOT NULL DEFAULT clock_timestamp(),
    by           text        NOT NULL,
    kind         text        COLLATE "C" NOT NULL CHECK (kind IN ('type', 'group', 'tenant')),
    name         text        COLLATE "C" NOT NULL,     -- the type, the prefix of groups, or the tenant
    PRIMARY KEY (kind, name),
    CHECK ((rate_count IS NULL) = (rate_seconds IS NULL) AND coalesce(running, rate_count) IS NOT NULL)
);

-- The current window of each limit with a rate: when it began, and the jobs that have started in it.
CREATE TABLE compactory.job_rates (
    begun_at timestamptz NOT NULL,
    starts   bigint      NOT NULL,
    kind     text        COLLATE "C" NOT NULL,
    name     text        COLLATE "C" NOT NULL,
    PRIMARY KEY (kind, name)
) WITH (fillfactor = 50);

ALTER TABLE compactory.job_executors ADD COLUMN limits jsonb NOT NULL DEFAULT '[]';

-- True for jobs that were claimed while they had a limit. The index has no other jobs, so others pay nothing for it.
ALTER TABLE compactory.jobs ADD COLUMN limited boolean;
CREATE INDEX jobs_running_limited ON compactory.jobs_live (type) WHERE state = 'running' AND limited;

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
