-- name: outbox/publish
-- One message, whose id comes back.
SELECT compactory.publish(%s::text, %s::bytea, %s::bytea, %s::text, %s::jsonb);

-- name: outbox/publish_list
-- Messages in their order; ids come back in the same.
SELECT compactory.publish(m.topic, m.payload, m.key, m.partition_key, m.headers::jsonb)
  FROM unnest(%s::text[], %s::bytea[], %s::bytea[], %s::text[], %s::text[])
       AS m (topic, payload, key, partition_key, headers);

-- name: outbox/settings
-- The settings of a relay's session. A message is read with its delete or its heartbeat in one transaction that is
-- flushed: whatever was seen is durable before it is sent, and deleted for good before the next batch is. Tables that
-- are nearly empty and full of dead rows mislead the planner: the one index is always right. A relay that froze while it took a
-- lock that nobody sees yet keeps it for as long as others wait.
SELECT set_config(name, value, false)
  FROM (VALUES ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'), ('enable_sort', 'off'), ('jit', 'off'),
               ('max_parallel_workers_per_gather', '0'), ('lock_timeout', '5s'), ('idle_in_transaction_session_timeout', '5s'), ('work_mem', '64MB'), ('default_transaction_isolation', 'read committed'),
               ('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                                      ELSE current_setting('synchronous_commit') END)) AS s (name, value);

-- name: outbox/server
-- Which database this is: two outboxes that send to one topic must not be taken for one another.
SELECT pg_is_in_recovery() AS standby, to_regclass('compactory.kafka_messages') IS NOT NULL AS installed,
       (SELECT system_identifier::text FROM pg_control_system()) || '-' || oid AS identity
  FROM pg_database WHERE datname = current_database();

-- name: outbox/rights
-- Which rights a relay's role lacks. By oid: a name in a schema without USAGE would be refused before it is found.
SELECT quote_ident(current_user) AS role, concat(string_agg(needed, ', '), ' ON ',
       CASE relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END, nspname, '.', relname) AS lacking
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  JOIN (VALUES ('kafka_messages', 'SELECT'), ('kafka_messages', 'DELETE'), ('kafka_messages_id_seq', 'SELECT'),
               ('kafka_failed_messages', 'SELECT'), ('kafka_failed_messages', 'INSERT'),
               ('kafka_topic_info', 'SELECT'), ('kafka_topic_info', 'INSERT'), ('kafka_topic_info', 'UPDATE')) AS w (name, needed)
    ON w.name = c.relname
 WHERE n.nspname = 'compactory'
   AND NOT (has_schema_privilege(n.oid, 'USAGE') AND CASE relkind WHEN 'S' THEN has_sequence_privilege(c.oid, needed)
                                                     ELSE has_table_privilege(c.oid, needed) END)
 GROUP BY nspname, relname, relkind;

-- name: outbox/pending
-- Topics with messages, longest waiting first, and whether their lock may be taken: free and without an error of the last
-- minute, or not renewed in time (a time that lies ahead was written before the server's clock was set back). "missing":
-- Kafka had no such topic; that error has no time, and ends when the topic is there. "whole"
-- looks below "reached" as well. "alone": the last attempt failed, and would take others along. Topics without a row are found between those that have one, each from the one before.
WITH RECURSIVE known AS (SELECT *, CASE WHEN %(whole)s THEN 0 ELSE reached END AS start FROM compactory.kafka_topic_info),
     gaps AS (SELECT topic AS low, coalesce(lead(topic) OVER (ORDER BY topic), '~') AS high
                FROM (SELECT topic FROM compactory.kafka_topic_info UNION ALL SELECT '' COLLATE "C") AS t),
     fresh AS (SELECT g.high, first.*
                 FROM gaps AS g
                 JOIN LATERAL (SELECT m.topic, m.id, m.created_at FROM compactory.kafka_messages AS m
                                WHERE m.topic > g.low AND m.topic < g.high ORDER BY m.topic, m.id LIMIT 1) AS first ON true
                UNION ALL
               SELECT f.high, next.*
                 FROM fresh AS f
                 JOIN LATERAL (SELECT m.topic, m.id, m.created_at FROM compactory.kafka_messages AS m
                                WHERE m.topic > f.topic AND m.topic < f.high ORDER BY m.topic, m.id LIMIT 1) AS next ON true)
SELECT k.topic, first.id, extract(epoch FROM clock_timestamp() - first.created_at)::float8 AS age, k.locked_by AS lapsed,
       CASE WHEN k.locked_by IS NULL THEN NOT k.error OR coalesce(k.error_at < clock_timestamp() - %(pause)s, false)
            ELSE k.locked_at NOT BETWEEN clock_timestamp() - %(ttl)s AND clock_timestamp() + %(ttl)s END AS free,
       k.retries > 0 AS alone, k.locked_by IS NULL AND k.error AND k.error_at IS NULL AS missing
  FROM known AS k
  JOIN LATERAL (SELECT m.id, m.created_at FROM compactory.kafka_messages AS m
                 WHERE m.topic = k.topic AND m.id > k.start ORDER BY m.topic, m.id LIMIT 1) AS first ON true
 UNION ALL
SELECT topic, id, extract(epoch FROM clock_timestamp() - created_at)::float8, NULL, true, false, false FROM fresh;

-- name: outbox/newest
-- The last id that was given to a message.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS id FROM compactory.kafka_messages_id_seq;

-- name: outbox/claim
-- Take the locks of topics that are free, or held by one whose transactional id was taken away. All statements lock
-- topics in the order of their names, so that relays do not block one another. Messages may have come below "reached":
-- logical replication does not copy a sequence, so that ids begin anew on the server that it fills.
INSERT INTO compactory.kafka_topic_info AS t (topic, locked_by, locked_at)
SELECT topic, %(holder)s, clock_timestamp() FROM unnest(%(topics)s::text[]) AS u (topic) ORDER BY topic COLLATE "C"
ON CONFLICT (topic) DO UPDATE SET locked_by = excluded.locked_by, locked_at = excluded.locked_at, error = false,
       reached = least(t.reached, (SELECT u.first - 1 FROM unnest(%(topics)s::text[], %(firsts)s::int8[]) AS u (topic, first)
                                    WHERE u.topic = t.topic))
 WHERE (t.locked_by IS NULL AND (NOT t.error OR t.error_at IS NULL OR t.error_at < clock_timestamp() - %(pause)s))
    OR (t.locked_by = %(lapsed)s
        AND (%(own)s OR t.locked_at NOT BETWEEN clock_timestamp() - %(ttl)s AND clock_timestamp() + %(ttl)s))
RETURNING topic, reached, rewinds, (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM compactory.kafka_messages_id_seq) AS newest;

-- name: outbox/renew_topics
-- Renew locks with what was deleted; a row less means that a lock was lost. Topics come in the order of their names.
UPDATE compactory.kafka_topic_info AS t
   SET locked_at = clock_timestamp(), reached = CASE t.rewinds WHEN u.rewinds THEN u.reached ELSE t.reached END
  FROM unnest(%(topics)s::text[], %(rewinds)s::int8[], %(reached)s::int8[]) AS u (topic, rewinds, reached)
 WHERE t.topic = u.topic AND t.locked_by = %(holder)s;

-- name: outbox/read
-- Read the next batch of each topic. The first row of one tells how things stand; there is none where the lock was lost.
-- A batch begins behind the ids that were seen, or where the first transaction has published that ran when they were
-- and has ended since. It ends with the message that brings it to so many bytes. Only messages that need it have "more":
-- partition key, headers, and whether the key waits for a message that failed.
SELECT b.id, b.key, b.payload, b.more
  FROM unnest(%(topics)s::text[], %(rewinds)s::int8[], %(starts)s::int8[], %(limits)s::int8[]) AS a (topic, rewinds, start, most)
  JOIN compactory.kafka_topic_info AS i ON i.topic = a.topic AND i.locked_by = %(holder)s
 CROSS JOIN LATERAL (SELECT least(a.start, min(r.low)) AS start
                       FROM unnest(%(of)s::text[], %(running)s::text[]::xid8[], %(lows)s::int8[]) AS r (topic, xid, low)
                      WHERE r.topic = a.topic AND pg_visible_in_snapshot(r.xid, pg_current_snapshot())) AS p
 CROSS JOIN LATERAL (
       SELECT NULL::int8 AS id, NULL::bytea AS key, NULL::bytea AS payload,
              jsonb_build_object('topic', i.topic, 'rewinds', i.rewinds, 'reached', i.reached,
                                 'snapshot', pg_current_snapshot()::text, 'own', pg_current_xact_id()::text,
                                 'newest', (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM compactory.kafka_messages_id_seq),
                                 'created', (SELECT m.created_at FROM compactory.kafka_messages AS m
                                              WHERE m.topic = a.topic AND m.id > p.start ORDER BY m.topic, m.id LIMIT 1)) AS more
        UNION ALL
       SELECT c.id, c.key, c.payload,
              CASE WHEN c.partition_key IS NOT NULL OR c.headers IS NOT NULL OR c.waits
                   THEN jsonb_build_array(c.partition_key, c.headers, c.waits) END
         FROM (SELECT m.id, m.key, m.payload, m.partition_key, m.headers,
                      coalesce(octet_length(m.payload), 0) AS size,
                      sum(octet_length(m.payload)) OVER (ORDER BY m.id ROWS UNBOUNDED PRECEDING) AS total,
                      (SELECT EXISTS (SELECT FROM compactory.kafka_failed_messages AS f WHERE f.topic = a.topic AND f.holds_key))
                      AND EXISTS (SELECT FROM compactory.kafka_failed_messages AS f
                                   WHERE f.topic = m.topic AND f.key = m.key AND f.holds_key) AS waits
                 FROM compactory.kafka_messages AS m
                WHERE m.topic = a.topic AND i.rewinds = a.rewinds AND m.id > p.start
                ORDER BY m.topic, m.id LIMIT a.most) AS c
        WHERE c.total IS NULL OR c.total - c.size < %(bytes)s) AS b;

-- name: outbox/delete
-- Messages that Kafka has, by exact id; their range alone is looked up in the index.
DELETE FROM compactory.kafka_messages
 WHERE topic = %(topic)s AND id BETWEEN %(first)s AND %(last)s AND id = ANY (%(ids)s::int8[]);

-- name: outbox/delete_sent
-- The same for the last batch of a holder that died, where it is there still: whole, its first message as old as it
-- was. Other messages may have got its ids since a backup was restored.
DELETE FROM compactory.kafka_messages
 WHERE topic = %(topic)s AND id = ANY (%(ids)s)
   AND (SELECT (min(m.created_at) FILTER (WHERE m.id = %(first)s), count(*)) = (%(created)s::timestamptz, %(count)s::int8)
          FROM compactory.kafka_messages AS m WHERE m.topic = %(topic)s AND m.id = ANY (%(ids)s));

-- name: outbox/release
-- Give locks back: everything that was read is sent and deleted. Topics come in the order of their names.
UPDATE compactory.kafka_topic_info AS t
   SET locked_by = NULL, locked_at = NULL, error = false, retries = 0, last_error = NULL,
       reached = CASE t.rewinds WHEN u.rewinds THEN u.reached ELSE t.reached END
  FROM unnest(%(topics)s::text[], %(rewinds)s::int8[], %(reached)s::int8[]) AS u (topic, rewinds, reached)
 WHERE t.topic = u.topic AND t.locked_by = %(holder)s;

-- name: outbox/fail
-- Give the lock back after an error that is the topic's: it is left alone for a minute, or until Kafka has it.
UPDATE compactory.kafka_topic_info
   SET locked_by = NULL, locked_at = NULL, error = true, error_at = CASE WHEN NOT %(missing)s THEN clock_timestamp() END, retries = retries + 1,
       last_error = %(reason)s
 WHERE topic = %(topic)s AND locked_by = %(holder)s;

-- name: outbox/end_session
-- A relay that froze within a transaction would hold its locks and its snapshot until it wakes up.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE application_name = %(name)s AND usename = current_user AND datname = current_database();

-- name: outbox/renew
-- Heartbeat of batches that take long; readers renew by themselves, and a lock on a row means that one does.
UPDATE compactory.kafka_topic_info SET locked_at = clock_timestamp()
 WHERE topic IN (SELECT topic FROM compactory.kafka_topic_info
                  WHERE locked_by = ANY (%(holders)s) AND locked_at < clock_timestamp() - interval '1 second'
                    FOR UPDATE SKIP LOCKED);

-- name: outbox/limits
-- How large a message of each topic may be, as the broker says.
INSERT INTO compactory.kafka_topic_info AS t (topic, max_bytes)
SELECT * FROM unnest(%(topics)s::text[], %(bytes)s::int4[]) AS u (topic, bytes) ORDER BY topic COLLATE "C"
    ON CONFLICT (topic) DO UPDATE SET max_bytes = excluded.max_bytes WHERE t.max_bytes IS DISTINCT FROM excluded.max_bytes;

-- name: outbox/topic
-- Keep operators from bringing messages back meanwhile, or the relay from setting others aside; no row when the lock is lost.
SELECT FROM compactory.kafka_topic_info WHERE topic = %(topic)s AND (locked_by = %(holder)s OR %(holder)s IS NULL) FOR UPDATE;

-- name: outbox/set_aside
-- Move a message that Kafka refuses out of the way.
WITH gone AS (DELETE FROM compactory.kafka_messages WHERE topic = %(topic)s AND id = %(id)s RETURNING *)
INSERT INTO compactory.kafka_failed_messages (id, topic, key, payload, partition_key, headers, created_at, reason, holds_key)
SELECT id, topic, key, payload, partition_key, headers, created_at, %(reason)s, %(holds)s AND key IS NOT NULL FROM gone;

-- name: outbox/hold_back
-- Move messages whose key still waits for an earlier one out of the way.
WITH gone AS (DELETE FROM compactory.kafka_messages AS m
               WHERE m.topic = %(topic)s AND m.id = ANY (%(ids)s)
                 AND EXISTS (SELECT FROM compactory.kafka_failed_messages AS f
                              WHERE f.topic = m.topic AND f.key = m.key AND f.holds_key)
              RETURNING m.*)
INSERT INTO compactory.kafka_failed_messages (id, topic, key, payload, partition_key, headers, created_at, reason, holds_key)
SELECT id, topic, key, payload, partition_key, headers, created_at, NULL, true FROM gone;

-- name: outbox/status
-- Every topic that a relay has seen, and those given: messages that wait (counted up to 100,000 of all topics, from the
-- index), the age of the first in seconds, who holds it, what failed.
SELECT i.topic, i.locked_by, extract(epoch FROM clock_timestamp() - i.locked_at)::float8 AS locked_seconds, i.error, i.retries,
       i.last_error, i.max_bytes, p.pending, p.pending >= s.most AS more, p.oldest, f.failed, f.waiting
  FROM (SELECT greatest(1, 100000 / (1 + count(*))) AS most FROM compactory.kafka_topic_info) AS s
 CROSS JOIN (SELECT topic, locked_by, locked_at, error, retries, last_error, max_bytes, reached FROM compactory.kafka_topic_info
         UNION ALL
        SELECT topic, NULL, NULL, false, 0, NULL, NULL, 0 FROM unnest(%(topics)s::text[]) AS t (topic)
         WHERE NOT EXISTS (SELECT FROM compactory.kafka_topic_info AS k WHERE k.topic = t.topic)) AS i
  JOIN LATERAL (SELECT count(*) AS pending,
                       coalesce(extract(epoch FROM clock_timestamp() - (SELECT m.created_at FROM compactory.kafka_messages AS m
                                                                         WHERE m.topic = i.topic AND m.id > i.reached
                                                                         ORDER BY m.topic, m.id LIMIT 1))::float8, 0) AS oldest
                  FROM (SELECT FROM compactory.kafka_messages AS m WHERE m.topic = i.topic AND m.id > i.reached
                         ORDER BY m.topic, m.id LIMIT s.most) AS b) AS p ON true
  JOIN LATERAL (SELECT count(*) FILTER (WHERE reason IS NOT NULL) AS failed, count(*) FILTER (WHERE reason IS NULL) AS waiting
                  FROM compactory.kafka_failed_messages AS m WHERE m.topic = i.topic) AS f ON true
 ORDER BY i.topic;

-- name: outbox/failed
-- Messages that were refused, or wait behind one.
SELECT id, topic, key, octet_length(payload) AS bytes, created_at, failed_at, reason, holds_key
  FROM compactory.kafka_failed_messages
 WHERE (%(topic)s::text IS NULL OR topic = %(topic)s) AND (%(ids)s::int8[] IS NULL OR id = ANY (%(ids)s))
 ORDER BY topic, id LIMIT %(limit)s;

-- name: outbox/chosen
-- Failed messages that an operator means, by topic; those that wait for another one only where "waiting" says so.
SELECT topic, array_agg(id ORDER BY id) AS ids
  FROM compactory.kafka_failed_messages
 WHERE (%(topic)s::text IS NULL OR topic = %(topic)s) AND (%(ids)s::int8[] IS NULL OR id = ANY (%(ids)s))
   AND (reason IS NOT NULL OR %(waiting)s)
 GROUP BY topic ORDER BY topic;

-- name: outbox/drop
-- Forget messages that failed.
DELETE FROM compactory.kafka_failed_messages WHERE topic = %(topic)s AND id = ANY (%(ids)s);

-- name: outbox/drop_unsent
-- Forget messages that wait for a topic that Kafka does not have, and that error. The topic's row must be locked before.
WITH missing AS (
    UPDATE compactory.kafka_topic_info SET error = false, retries = 0, last_error = NULL
     WHERE topic = %(topic)s AND locked_by IS NULL AND error AND error_at IS NULL
    RETURNING topic)
DELETE FROM compactory.kafka_messages AS m USING missing WHERE m.topic = missing.topic;

-- name: outbox/put_back
-- Have messages that failed sent again.
WITH gone AS (DELETE FROM compactory.kafka_failed_messages WHERE topic = %(topic)s AND id = ANY (%(ids)s) RETURNING *)
INSERT INTO compactory.kafka_messages (id, topic, key, payload, partition_key, headers, created_at)
OVERRIDING SYSTEM VALUE
SELECT id, topic, key, payload, partition_key, headers, created_at FROM gone RETURNING id;

-- name: outbox/put_back_freed
-- Messages that waited behind a key, once no message of the key has failed any more.
WITH gone AS (DELETE FROM compactory.kafka_failed_messages AS f
               WHERE f.topic = %(topic)s AND f.reason IS NULL
                 AND NOT EXISTS (SELECT FROM compactory.kafka_failed_messages AS o
                                  WHERE o.topic = f.topic AND o.key = f.key AND o.reason IS NOT NULL)
              RETURNING f.*)
INSERT INTO compactory.kafka_messages (id, topic, key, payload, partition_key, headers, created_at)
OVERRIDING SYSTEM VALUE
SELECT id, topic, key, payload, partition_key, headers, created_at FROM gone RETURNING id;

-- name: outbox/rewind
-- Have relays look for messages that came back, from this id on.
UPDATE compactory.kafka_topic_info
   SET reached = least(reached, %(first)s - 1), rewinds = rewinds + 1, error = false WHERE topic = %(topic)s;
