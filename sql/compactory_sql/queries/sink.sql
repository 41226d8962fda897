-- name: sink/settings
-- The settings of a sink's session. READ COMMITTED, because a snapshot taken before waiting for a row lock would
-- fail. PostgreSQL 17 has transaction_timeout; the time-out of idle transactions alone does not work after a
-- pipeline.
SELECT set_config(s.name, s.value, false)
  FROM (VALUES ('lock_timeout', %(lock)s), ('statement_timeout', %(limit)s), ('transaction_timeout', %(limit)s),
               ('idle_in_transaction_session_timeout', %(limit)s), ('row_security', 'on'),
               ('default_transaction_isolation', 'read committed'), ('jit', 'off')) AS s (name, value)
  JOIN pg_settings USING (name);

-- name: sink/server
SELECT pg_is_in_recovery() AS standby, to_regclass('compactory.paused') IS NOT NULL AS installed;

-- name: sink/rights
-- The rights that a sink's role lacks. By oid, because a name in a schema without USAGE is refused before it is
-- found.
SELECT quote_ident(current_user) AS role,
       string_agg(needed, ', ') || ' ON TABLE ' || nspname || '.' || relname AS lacking
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  JOIN (VALUES ('kafka_partitions', '{SELECT,INSERT,UPDATE}'::text[]),
               ('kafka_failed_records', '{SELECT,INSERT,UPDATE,DELETE}'), ('paused', '{SELECT}')) AS t (name, rights) ON t.name = c.relname
 CROSS JOIN unnest(t.rights) AS needed
 WHERE n.nspname = 'compactory'
   AND NOT (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, needed))
 GROUP BY nspname, relname;

-- name: sink/insert_partitions
-- Insert rows for partitions that have none.
INSERT INTO compactory.kafka_partitions (sink, topic, partition)
SELECT %(sink)s, topic, partition FROM unnest(%(topics)s::text[], %(partitions)s::int[]) AS p (topic, partition)
 ORDER BY topic, partition
    ON CONFLICT DO NOTHING;

-- name: sink/read_offsets
-- The stored offsets of partitions. Waits for transactions that change them.
SELECT topic, partition, "offset", topic_id, CASE WHEN epoch_offset = "offset" THEN record_end END, leader_epoch
  FROM compactory.kafka_partitions
 WHERE sink = %(sink)s AND (topic, partition) IN (SELECT * FROM unnest(%(topics)s::text[], %(partitions)s::int[]))
 ORDER BY topic, partition FOR UPDATE;

-- name: sink/set_first
-- Store the first offset of a partition that has none.
UPDATE compactory.kafka_partitions SET "offset" = %(offset)s, topic_id = %(topic_id)s, updated_at = clock_timestamp()
 WHERE sink = %(sink)s AND topic = %(topic)s AND partition = %(partition)s AND "offset" IS NULL;

-- name: sink/lock
-- Lock a partition's row. Return its offset, and whether it has failed records.
SELECT "offset", EXISTS (SELECT FROM compactory.kafka_failed_records AS f
                          WHERE f.sink = p.sink AND f.topic = p.topic AND f.partition = p.partition)
  FROM compactory.kafka_partitions AS p
 WHERE sink = %(sink)s AND topic = %(topic)s AND partition = %(partition)s FOR UPDATE;

-- name: sink/advance
-- Advance the offset of a partition.
UPDATE compactory.kafka_partitions
   SET "offset" = %(offset)s, updated_at = clock_timestamp(),
       epoch_offset = CASE WHEN %(record_end)s::int8 IS NOT NULL OR epoch_offset = "offset" THEN %(offset)s END,
       record_end = coalesce(%(record_end)s::int8, record_end),
       leader_epoch = CASE WHEN %(record_end)s::int8 IS NULL THEN leader_epoch ELSE %(leader_epoch)s::int4 END
 WHERE sink = %(sink)s AND topic = %(topic)s AND partition = %(partition)s AND "offset" = %(expected)s;

-- name: sink/set
-- Set the offset of a partition, as an operator asks.
UPDATE compactory.kafka_partitions
   SET "offset" = %(offset)s, topic_id = %(topic_id)s, updated_at = clock_timestamp(), epoch_offset = NULL
 WHERE sink = %(sink)s AND topic = %(topic)s AND partition = %(partition)s;

-- name: sink/status
SELECT p.sink, p.topic, p.partition, p.topic_id, p."offset", p.updated_at, f.failed, f.waiting
  FROM compactory.kafka_partitions AS p
 CROSS JOIN LATERAL (SELECT count(reason) AS failed, count(*) - count(reason) AS waiting FROM compactory.kafka_failed_records AS f
                      WHERE f.sink = p.sink AND f.topic = p.topic AND f.partition = p.partition) AS f
 WHERE p.sink = coalesce(%(sink)s, p.sink) ORDER BY sink, topic, partition;

-- name: sink/failed_keys
-- Keys with failed records. IS TRUE makes Postgres hash the keys: their number is unknown to the planner, and a
-- join would compare each with each.
SELECT DISTINCT key FROM compactory.kafka_failed_records
 WHERE sink = %(sink)s AND topic = %(topic)s AND partition = %(partition)s
   AND (key IN (SELECT unnest(%(keys)b::bytea[]))) IS TRUE;

-- name: sink/set_aside
-- Store a failed record. It exists already if an operator has set the offset back.
INSERT INTO compactory.kafka_failed_records (sink, topic, partition, "offset", key, value, headers, timestamp_ms, reason)
VALUES (%(sink)s, %(topic)s, %(partition)s, %(offset)s, %(key)s, %(value)s, %(headers)s, %(timestamp_ms)s, %(reason)s)
    ON CONFLICT (sink, topic, partition, "offset") DO UPDATE
   SET (key, value, headers, timestamp_ms, reason) = (excluded.key, excluded.value, excluded.headers,
        excluded.timestamp_ms, coalesce(excluded.reason, kafka_failed_records.reason));

-- name: sink/failed
SELECT sink, topic, partition, "offset", key, octet_length(value) AS bytes, failed_at, reason, again
  FROM compactory.kafka_failed_records
 WHERE sink = coalesce(%(sink)s, sink) AND topic = coalesce(%(topic)s, topic)
   AND partition = coalesce(%(partition)s, partition) AND "offset" = coalesce(%(offset)s, "offset")
 ORDER BY sink, topic, partition, "offset" LIMIT %(limit)s;

-- name: sink/failed_counts
SELECT topic, partition, count(*) FROM compactory.kafka_failed_records WHERE sink = %(sink)s GROUP BY topic, partition;

-- name: sink/chosen
-- Partitions of the failed records that an operator selects.
SELECT DISTINCT topic, partition FROM compactory.kafka_failed_records
 WHERE sink = %(sink)s AND topic = coalesce(%(topic)s, topic) AND partition = coalesce(%(partition)s, partition)
   AND "offset" = coalesce(%(offset)s, "offset") ORDER BY topic, partition;

-- name: sink/request_retry
-- Request a retry of failed records, and of those that wait for them.
UPDATE compactory.kafka_failed_records AS f SET again = true
 WHERE sink = %(sink)s AND topic = %(topic)s AND partition = %(partition)s
   AND ("offset" = coalesce(%(offset)s, "offset")
        OR key IN (SELECT key FROM compactory.kafka_failed_records AS o
                    WHERE o.sink = f.sink AND o.topic = f.topic AND o.partition = f.partition AND o."offset" = %(offset)s));

-- name: sink/drop
-- Delete failed records. Records that wait only for them are retried.
DELETE FROM compactory.kafka_failed_records
 WHERE sink = %(sink)s AND topic = %(topic)s AND partition = %(partition)s
   AND reason IS NOT NULL AND "offset" = coalesce(%(offset)s, "offset");

-- name: sink/retry_waiting
-- Request a retry of waiting records that no longer have a failed record to wait for.
UPDATE compactory.kafka_failed_records AS f SET again = true
 WHERE sink = %(sink)s AND topic = %(topic)s AND partition = %(partition)s AND reason IS NULL
   AND NOT EXISTS (SELECT FROM compactory.kafka_failed_records AS o
                    WHERE o.sink = f.sink AND o.topic = f.topic AND o.partition = f.partition AND o.key = f.key
                      AND o.reason IS NOT NULL AND o."offset" < f."offset");

-- name: sink/retry_partitions
-- Partitions with requested retries.
SELECT DISTINCT topic, partition FROM compactory.kafka_failed_records WHERE sink = %(sink)s AND again;

-- name: sink/take_retries
-- Take the next records to retry.
DELETE FROM compactory.kafka_failed_records AS f
 USING (SELECT "offset" FROM compactory.kafka_failed_records
         WHERE sink = %(sink)s AND topic = %(topic)s AND partition = %(partition)s AND again
         ORDER BY "offset" LIMIT %(limit)s) AS next
 WHERE sink = %(sink)s AND topic = %(topic)s AND partition = %(partition)s AND f."offset" = next."offset"
RETURNING topic, partition, f."offset", key, value, timestamp_ms, headers;

-- name: sink/retry_keys
-- Retry the other records of the keys, but not behind a record that has failed again.
UPDATE compactory.kafka_failed_records SET again = NOT again
 WHERE sink = %(sink)s AND topic = %(topic)s AND partition = %(partition)s
   AND key = ANY (%(keys)b::bytea[]) AND again = (key = ANY (%(failed)b::bytea[]));

-- name: sink/columns
-- Columns, with the base type of a domain; "generated": by the server.
SELECT a.attname AS name, a.atttypmod AS length,
       CASE WHEN a.attgenerated <> '' THEN 'stored' WHEN a.attidentity = 'a' THEN 'identity' ELSE '' END AS generated,
       coalesce(e.typname || '[]', CASE t.typtype WHEN 'd' THEN b.typname ELSE t.typname END) AS kind
  FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
  LEFT JOIN pg_type AS b ON b.oid = t.typbasetype
  LEFT JOIN pg_type AS e ON e.oid = t.typelem AND t.typcategory = 'A'
 WHERE a.attrelid = to_regclass(%(name)s) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum;
