-- A row for each partition that a sink writes to this database: where its next record is. A sink locks the row in the
-- transaction of its records and moves the offset there, so that both are committed or neither is.
CREATE TABLE compactory.kafka_partitions (
    sink       text        COLLATE "C" NOT NULL,
    topic      text        COLLATE "C" NOT NULL,
    partition  integer     NOT NULL,
    topic_id   text,                                   -- a topic that is created again has another
    "offset"   bigint,                                 -- of the next record; NULL: never used
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (sink, topic, partition)
) WITH (fillfactor = 50);                              -- leaves room to move the offset within the page

-- Work on a partition in parallel: a part of its keys that is done from the partition's offset up to "until". Rows go as
-- soon as all parts have reached one offset.
CREATE TABLE compactory.kafka_partition_parts (
    sink      text    COLLATE "C" NOT NULL,
    topic     text    COLLATE "C" NOT NULL,
    partition integer NOT NULL,
    part      integer NOT NULL,                        -- of the keys, by their hash
    parts     integer NOT NULL,
    until     bigint  NOT NULL,
    PRIMARY KEY (sink, topic, partition, part)
);

-- Records that a sink set aside, with the reason; and those that wait behind one with the same key, with none.
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
    again        boolean     NOT NULL DEFAULT false,   -- an operator wants it to be tried again
    PRIMARY KEY (sink, topic, partition, "offset")
);

-- Default privileges of the installing role may have granted rights.
DO $$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT DISTINCT oid::regclass AS object, a.grantee
          FROM pg_class, aclexplode(relacl) AS a
         WHERE relnamespace = 'compactory'::regnamespace AND a.grantee <> relowner
           AND relname IN ('kafka_partitions', 'kafka_partition_parts', 'kafka_failed_records')
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s', granted.object,
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END);
    END LOOP;
END
$$;
