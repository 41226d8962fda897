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
    PRIMARY KEY (topic, id)
);
CREATE INDEX ON compactory.kafka_failed_messages (topic, key) WHERE key IS NOT NULL;

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
