-- Rights of services that publish: the functions run with their owner's rights.
GRANT USAGE ON SCHEMA compactory TO {publisher}, {relay};

GRANT EXECUTE ON FUNCTION compactory.publish(text, bytea, bytea, text, jsonb),
    compactory.publish(text, text, text, text, jsonb), compactory.publish(text, bytea, text, text, jsonb),
    compactory.publish(text, text, bytea, text, jsonb), compactory.publish(text, jsonb, text, text, jsonb),
    compactory.publish_at(timestamptz, text, bytea, bytea, text, jsonb),
    compactory.publish_at(timestamptz, text, text, text, text, jsonb),
    compactory.publish_at(timestamptz, text, jsonb, text, text, jsonb) TO {publisher};

-- Rights of relays, and of operators who retry and drop. No UPDATE of messages: they never change.
GRANT SELECT, INSERT, DELETE ON compactory.kafka_messages, compactory.kafka_failed_messages TO {relay};

GRANT SELECT, DELETE ON compactory.kafka_scheduled_messages TO {relay};

GRANT SELECT ON SEQUENCE compactory.kafka_messages_id_seq TO {relay};

GRANT SELECT, INSERT, UPDATE ON compactory.kafka_topic_info TO {relay};

GRANT SELECT, INSERT, DELETE ON compactory.paused TO {relay};

GRANT SELECT ON compactory.operator_log TO {relay};

GRANT EXECUTE ON FUNCTION compactory.log_act(text, text, jsonb, bigint, text) TO {relay};
