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

-- Default privileges of the installing role may have granted rights, and PUBLIC may call new functions.
DO $$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT DISTINCT object, a.grantee
          FROM (SELECT 'TABLE ' || oid::regclass AS object, relowner AS owner, relacl AS acl
                  FROM pg_class WHERE oid = 'compactory.kafka_scheduled_messages'::regclass
                UNION ALL
                SELECT 'FUNCTION ' || oid::regprocedure, proowner, coalesce(proacl, acldefault('f', proowner))
                  FROM pg_proc WHERE pronamespace = 'compactory'::regnamespace
                   AND (proname = 'publish_at' OR proname = 'publish' AND proargtypes[1] = 'jsonb'::regtype)) AS objects,
               aclexplode(acl) AS a
         WHERE a.grantee <> owner
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s', granted.object,
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END);
    END LOOP;
END
$$;
