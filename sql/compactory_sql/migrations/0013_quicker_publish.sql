-- The same checks for half the time: a bounded regular expression and PERFORM are slow.
CREATE OR REPLACE FUNCTION compactory.publish(topic text, payload bytea, key bytea DEFAULT NULL, partition_key text DEFAULT NULL,
                                              headers jsonb DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    size  int8 := coalesce(octet_length(payload), 0) + coalesce(octet_length(key), 0);
    most  int4;
    made  int8;
    xid   xid8;
BEGIN
    IF topic IS NULL OR topic IN ('', '.', '..') OR octet_length(topic) > 249
       OR translate(topic, 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-', '') <> '' THEN
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
    xid := pg_current_xact_id();
    INSERT INTO compactory.kafka_messages (topic, key, payload, partition_key, headers)
         VALUES (topic, key, payload, partition_key, headers) RETURNING id INTO made;
    IF NOT pg_try_advisory_xact_lock_shared(1129140303, 0)
       AND coalesce(current_setting('compactory.notify', true), '') <> 'off' THEN
        PERFORM pg_notify('compactory_outbox', '');
    END IF;
    RETURN made;
END
$$;
