-- The leader epoch of the last record that a sink has applied, and the offset after that record: by these Kafka tells
-- whether the log was cut off before it, however far it has grown since.
ALTER TABLE compactory.kafka_partitions
    ADD COLUMN record_end   bigint,
    ADD COLUMN leader_epoch integer,
    ADD COLUMN epoch_offset bigint;                    -- the "offset" for which they count: older sinks move it alone
