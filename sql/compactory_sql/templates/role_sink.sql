-- Rights of a sink, and of operators who set offsets, retry and drop.
GRANT TEMPORARY ON DATABASE {database} TO {sink};

GRANT USAGE ON SCHEMA compactory TO {sink};

GRANT SELECT, INSERT, UPDATE ON compactory.kafka_partitions TO {sink};

GRANT SELECT, INSERT, UPDATE, DELETE ON compactory.kafka_failed_records, compactory.kafka_handled_messages TO {sink};

GRANT SELECT, INSERT, DELETE ON compactory.paused TO {sink};

GRANT SELECT ON compactory.operator_log TO {sink};

GRANT EXECUTE ON FUNCTION compactory.log_act(text, text, jsonb, bigint, text) TO {sink};
