-- Refuses a header whose base64 is none. Takes a third of the time: every statement of PL/pgSQL costs, so the usual
-- message passes one expression and one INSERT.
CREATE OR REPLACE FUNCTION compactory.publish(topic text, payload bytea, key bytea DEFAULT NULL, partition_key text DEFAULT NULL,
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
