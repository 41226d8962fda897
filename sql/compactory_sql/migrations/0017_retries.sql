-- A running sink looks every second for records to retry, and takes a few of them at a time with those of their keys.
CREATE INDEX kafka_failed_records_again ON compactory.kafka_failed_records (sink, topic, partition, "offset") WHERE again;
CREATE INDEX kafka_failed_records_key ON compactory.kafka_failed_records USING hash (key);
