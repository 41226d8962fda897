-- Messages on their way to Kafka: written in the transaction that is their cause, deleted once Kafka has them. Rows are
-- never updated. The one index serves reading a topic in order of ids and deleting by exact id.
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

-- Messages that Kafka refused, with the reason; and those that wait behind one with the same key, with none.
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

-- A row for each topic: the lock of the relay's thread that sends it.
CREATE TABLE compactory.kafka_topic_info (
    topic      text        COLLATE "C" PRIMARY KEY,
    locked_by  text,                               -- names host, process and thread; ends the transactional id in Kafka
    locked_at  timestamptz,                        -- renewed while a batch is sent
    error      boolean     NOT NULL DEFAULT false, -- left alone for a minute
    retries    integer     NOT NULL DEFAULT 0,
    error_at   timestamptz,
    last_error text,
    reached    bigint      NOT NULL DEFAULT 0,     -- no message with this id or a lower one can be there, or come
    rewinds    bigint      NOT NULL DEFAULT 0,     -- how often "reached" was set back because messages came back
    max_bytes  integer                             -- max.message.bytes of the topic, once a relay has asked for it
) WITH (fillfactor = 50);                          -- leaves room to renew within the page

-- Publishes in the caller's transaction; returns the id, which the record carries in the header compactory-message-id.
-- The transaction has its own id before the message has one: a relay's look at what runs depends on that order.
CREATE FUNCTION compactory.publish(topic text, payload bytea, key bytea DEFAULT NULL, partition_key text DEFAULT NULL,
                                   headers jsonb DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    size  int8 := coalesce(octet_length(payload), 0) + coalesce(octet_length(key), 0);
    most  int4;
    made  int8;
BEGIN
    IF topic IS NULL OR topic !~ '^[A-Za-z0-9._-]{1,249}$' OR topic IN ('.', '..') THEN
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
            OR NOT (jsonb_typeof(h.value) IN ('string', 'null') OR coalesce(jsonb_typeof(h.value -> 'base64'), '') = 'string'))) THEN
        RAISE EXCEPTION 'compactory.publish: the headers of a message to % are not usable', topic
              USING ERRCODE = 'invalid_parameter_value',
                    HINT = 'Give an object of names and texts, nulls or {"base64": "…"}; compactory-message-id is taken.';
    END IF;
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
    PERFORM pg_current_xact_id();
    INSERT INTO compactory.kafka_messages (topic, key, payload, partition_key, headers)
         VALUES (topic, key, payload, partition_key, headers) RETURNING id INTO made;
    IF NOT pg_try_advisory_xact_lock_shared(1129140303, 0)
       AND coalesce(current_setting('compactory.notify', true), '') <> 'off' THEN
        PERFORM pg_notify('compactory_outbox', '');
    END IF;
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

-- Default privileges of the installing role may have granted rights, and PUBLIC may call new functions.
DO $$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT DISTINCT object, a.grantee
          FROM (SELECT CASE relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || oid::regclass AS object, relowner AS owner,
                       relacl AS acl
                  FROM pg_class WHERE relnamespace = 'compactory'::regnamespace AND relkind IN ('r', 'S') AND relname LIKE 'kafka%'
                UNION ALL
                SELECT 'FUNCTION ' || oid::regprocedure, proowner, coalesce(proacl, acldefault('f', proowner))
                  FROM pg_proc WHERE pronamespace = 'compactory'::regnamespace AND proname = 'publish') AS objects,
               aclexplode(acl) AS a
         WHERE a.grantee <> owner
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s', granted.object,
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END);
    END LOOP;
END
$$;
