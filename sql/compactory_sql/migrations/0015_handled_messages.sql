-- Ids of messages that a reader has handled, for a reader that drops what Kafka has twice. Kept for a week.
CREATE TABLE compactory.kafka_handled_messages (
    reader     text        COLLATE "C" NOT NULL,       -- a sink, or another consumer
    topic      text        COLLATE "C" NOT NULL,
    id         text        COLLATE "C" NOT NULL,
    handled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (reader, topic, id)
);

CREATE INDEX ON compactory.kafka_handled_messages (handled_at);

-- Default privileges of the installing role may have granted rights.
DO $$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT DISTINCT oid::regclass AS object, a.grantee
          FROM pg_class, aclexplode(relacl) AS a
         WHERE relnamespace = 'compactory'::regnamespace AND a.grantee <> relowner
           AND relname = 'kafka_handled_messages'
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s', granted.object,
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END);
    END LOOP;
END
$$;
