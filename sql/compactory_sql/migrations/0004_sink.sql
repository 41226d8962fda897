-- The offset of each partition that a sink writes to this database. A sink locks the row and advances the offset in the
-- transaction that writes the records, so that both are committed or neither.
CREATE TABLE compactory.kafka_partitions (
    sink       text        COLLATE "C" NOT NULL,
    topic      text        COLLATE "C" NOT NULL,
    partition  integer     NOT NULL,
    topic_id   text,                                   -- changes when the topic is created again
    "offset"   bigint,                                 -- of the next record; NULL: never used
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    record_end bigint,                                 -- after the last record, before marks of transactions
    leader_epoch integer,                              -- of that record: tells whether the log was cut off before it
    epoch_offset bigint,                               -- the "offset" for which these two count
    PRIMARY KEY (sink, topic, partition)
) WITH (fillfactor = 50);                              -- leaves room to move the offset within the page

-- Records that a sink could not write, with the reason; and records that wait for one of their key, without a reason.
CREATE TABLE compactory.kafka_failed_records (
    sink         text        COLLATE "C" NOT NULL,
    topic        text        COLLATE "C" NOT NULL,
    partition    integer     NOT NULL,
    "offset"     bigint      NOT NULL,
    key          bytea,
    value        bytea,
    headers      jsonb,                                -- pairs of name and base64, or null
    timestamp_ms bigint,
    failed_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason       text,                                 -- NULL: waits for an earlier one
    again        boolean     NOT NULL DEFAULT false,   -- an operator has requested a retry
    PRIMARY KEY (sink, topic, partition, "offset")
);

-- A running sink looks every second for records to retry, and takes a few of them at a time with those of their keys.
CREATE INDEX kafka_failed_records_again ON compactory.kafka_failed_records (sink, topic, partition, "offset") WHERE again;
CREATE INDEX kafka_failed_records_key ON compactory.kafka_failed_records USING hash (key);

-- Ids of messages that a reader has handled, so that it skips duplicates. Kept for a week.
CREATE TABLE compactory.kafka_handled_messages (
    reader     text        COLLATE "C" NOT NULL,       -- a sink, or another consumer
    topic      text        COLLATE "C" NOT NULL,
    id         text        COLLATE "C" NOT NULL,
    handled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (reader, topic, id)
);

CREATE INDEX ON compactory.kafka_handled_messages (handled_at);
