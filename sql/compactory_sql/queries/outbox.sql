-- name: outbox/publish
-- Publish one message; return its id.
SELECT compactory.publish(%s::text, %s::bytea, %s::bytea, %s::text, %s::jsonb);

-- name: outbox/publish_list
-- Publish messages in their order; return their ids in the same order.
SELECT compactory.publish(m.topic, m.payload, m.key, m.partition_key, m.headers::jsonb)
  FROM unnest(%s::text[], %s::bytea[], %s::bytea[], %s::text[], %s::text[])
       AS m (topic, payload, key, partition_key, headers);

-- name: outbox/publish_at_list
-- Publish messages in their order, some at a later time; return their ids in the same order.
SELECT compactory.publish_at(m.deliver_at, m.topic, m.payload, m.key, m.partition_key, m.headers::jsonb)
  FROM unnest(%s::text[], %s::bytea[], %s::bytea[], %s::text[], %s::text[], %s::timestamptz[])
       AS m (topic, payload, key, partition_key, headers, deliver_at);

-- name: outbox/publish_due
-- Move scheduled messages that are due to the messages that are sent. Return their number, and the seconds until the
-- next is due. They get new ids, because relays have read beyond the former ones; a header keeps the former id. One
-- relay does it at a time.
WITH due AS (
    DELETE FROM compactory.kafka_scheduled_messages AS s
     USING (SELECT topic, id FROM compactory.kafka_scheduled_messages
             WHERE deliver_at <= statement_timestamp() AND (SELECT pg_try_advisory_xact_lock(1129140303, 1))
             ORDER BY deliver_at, id LIMIT %(limit)s) AS d
     WHERE s.topic = d.topic AND s.id = d.id
    RETURNING s.*),
     published AS (
    INSERT INTO compactory.kafka_messages (topic, key, payload, partition_key, headers)
    SELECT topic, key, payload, partition_key,
           coalesce(headers, '{}') || jsonb_build_object('compactory-message-id', id::text)
      FROM due ORDER BY deliver_at, id
    RETURNING id)
SELECT (SELECT count(*) FROM published) AS published,
       (SELECT extract(epoch FROM s.deliver_at - statement_timestamp())::float8
          FROM compactory.kafka_scheduled_messages AS s WHERE s.deliver_at > statement_timestamp()
         ORDER BY s.deliver_at LIMIT 1) AS next_due;

-- name: outbox/settings
-- The settings of a relay's session. The transaction that reads a message also deletes the previous batch or
-- renews a lock, and its commit is flushed: so a message is on disk before it is sent, and deleted for good before
-- the next batch is sent. Tables with few rows and many dead ones mislead the planner, although one index is
-- always right: so other plans are off. The time-outs end a relay that hangs with a lock.
SELECT set_config(name, value, false)
  FROM (VALUES ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'), ('enable_sort', 'off'), ('jit', 'off'),
               ('max_parallel_workers_per_gather', '0'), ('lock_timeout', '5s'), ('idle_in_transaction_session_timeout', '5s'), ('work_mem', '64MB'), ('default_transaction_isolation', 'read committed'),
               ('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                                      ELSE current_setting('synchronous_commit') END)) AS s (name, value);

-- name: outbox/server
-- Which database this is: two outboxes that send to one topic must have different identities.
SELECT pg_is_in_recovery() AS standby, to_regclass('compactory.paused') IS NOT NULL AS installed,
       (SELECT system_identifier::text FROM pg_control_system()) || '-' || oid AS identity
  FROM pg_database WHERE datname = current_database();

-- name: outbox/rights
-- The rights that a relay's role lacks. By oid, because a name in a schema without USAGE is refused before it is
-- found.
SELECT quote_ident(current_user) AS role, concat(string_agg(needed, ', '), ' ON ',
       CASE relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END, nspname, '.', relname) AS lacking
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  JOIN (VALUES ('kafka_messages', 'SELECT'), ('kafka_messages', 'DELETE'), ('kafka_messages_id_seq', 'SELECT'),
               ('kafka_scheduled_messages', 'SELECT'), ('kafka_scheduled_messages', 'DELETE'), ('kafka_messages', 'INSERT'),
               ('kafka_failed_messages', 'SELECT'), ('kafka_failed_messages', 'INSERT'),
               ('kafka_topic_info', 'SELECT'), ('kafka_topic_info', 'INSERT'), ('kafka_topic_info', 'UPDATE'), ('paused', 'SELECT')) AS w (name, needed)
    ON w.name = c.relname
 WHERE n.nspname = 'compactory'
   AND NOT (has_schema_privilege(n.oid, 'USAGE') AND CASE relkind WHEN 'S' THEN has_sequence_privilege(c.oid, needed)
                                                     ELSE has_table_privilege(c.oid, needed) END)
 GROUP BY nspname, relname, relkind;

-- name: outbox/pending
-- Topics with messages, and the age of their first. "free": the lock can be taken, because nobody has it and there was
-- no error in the last minute, or because it has expired. A time in the future was written before the server's clock was
-- set back. "missing": Kafka had no such topic; that error has no time and ends when the topic exists. "alone": the last
-- attempt failed, so the topic is sent alone, or others would fail with it. %(whole)s also reads below "reached". Topics
-- without a row are searched between the names of topics with one.
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
-- The last id that was assigned to a message.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS id FROM compactory.kafka_messages_id_seq;

-- name: outbox/claim
-- Lock topics that are free, or whose holder has lost its transactional id. All statements lock topics in order of
-- their names, so that relays do not block one another. "reached" is lowered to messages below it: logical
-- replication does not copy a sequence, so ids start again on the server that it fills.
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
-- Renew locks and store how far messages were deleted. A missing row means that the lock was lost. In order of
-- topic names.
UPDATE compactory.kafka_topic_info AS t
   SET locked_at = clock_timestamp(), reached = CASE t.rewinds WHEN u.rewinds THEN u.reached ELSE t.reached END
  FROM unnest(%(topics)s::text[], %(rewinds)s::int8[], %(reached)s::int8[]) AS u (topic, rewinds, reached)
 WHERE t.topic = u.topic AND t.locked_by = %(holder)s;

-- name: outbox/read
-- Read the next batch of each topic. Its first row has the state of the topic; no row if the lock was lost. A
-- batch begins after the ids that were read before, or earlier: at the first id of a transaction that was running
-- then and has ended since. It ends with the message that exceeds %(bytes)s. "more" is only set for messages that
-- need it: partition key, headers, and whether an earlier message of the key has failed.
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
                      (SELECT EXISTS (SELECT FROM compactory.kafka_failed_messages AS f WHERE f.topic = a.topic AND f.key IS NOT NULL))
                      AND EXISTS (SELECT FROM compactory.kafka_failed_messages AS f
                                   WHERE f.topic = m.topic AND f.key = m.key) AS waits
                 FROM compactory.kafka_messages AS m
                WHERE m.topic = a.topic AND i.rewinds = a.rewinds AND m.id > p.start
                ORDER BY m.topic, m.id LIMIT a.most) AS c
        WHERE c.total IS NULL OR c.total - c.size < %(bytes)s) AS b;

-- name: outbox/delete
-- Delete messages that Kafka has, by exact id. The index is searched by their range.
DELETE FROM compactory.kafka_messages
 WHERE topic = %(topic)s AND id BETWEEN %(first)s AND %(last)s AND id = ANY (%(ids)s::int8[]);

-- name: outbox/delete_sent
-- Delete the last batch of a dead holder, if all of it is still there and its first message has the same time.
-- After the restore of a backup other messages may have the same ids.
DELETE FROM compactory.kafka_messages
 WHERE topic = %(topic)s AND id = ANY (%(ids)s)
   AND (SELECT (min(m.created_at) FILTER (WHERE m.id = %(first)s), count(*)) = (%(created)s::timestamptz, %(count)s::int8)
          FROM compactory.kafka_messages AS m WHERE m.topic = %(topic)s AND m.id = ANY (%(ids)s));

-- name: outbox/release
-- Give locks back after everything that was read is sent and deleted. In order of topic names.
UPDATE compactory.kafka_topic_info AS t
   SET locked_by = NULL, locked_at = NULL, error = false, retries = 0, last_error = NULL,
       reached = CASE t.rewinds WHEN u.rewinds THEN u.reached ELSE t.reached END
  FROM unnest(%(topics)s::text[], %(rewinds)s::int8[], %(reached)s::int8[]) AS u (topic, rewinds, reached)
 WHERE t.topic = u.topic AND t.locked_by = %(holder)s;

-- name: outbox/fail
-- Give the lock back after an error of the topic. The topic pauses for a minute, or until Kafka has it.
UPDATE compactory.kafka_topic_info
   SET locked_by = NULL, locked_at = NULL, error = true, error_at = CASE WHEN NOT %(missing)s THEN clock_timestamp() END, retries = retries + 1,
       last_error = %(reason)s
 WHERE topic = %(topic)s AND locked_by = %(holder)s;

-- name: outbox/end_session
-- End the session of a relay that hangs within a transaction: it would keep its locks and its snapshot.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE application_name = %(name)s AND usename = current_user AND datname = current_database();

-- name: outbox/renew
-- Renew the locks of long batches. Readers renew by themselves: a locked row means that a reader does it now.
UPDATE compactory.kafka_topic_info SET locked_at = clock_timestamp()
 WHERE topic IN (SELECT topic FROM compactory.kafka_topic_info
                  WHERE locked_by = ANY (%(holders)s) AND locked_at < clock_timestamp() - interval '1 second'
                    FOR UPDATE SKIP LOCKED);

-- name: outbox/set_max_bytes
-- Store the largest message that the broker accepts for each topic.
INSERT INTO compactory.kafka_topic_info AS t (topic, max_bytes)
SELECT * FROM unnest(%(topics)s::text[], %(bytes)s::int4[]) AS u (topic, bytes) ORDER BY topic COLLATE "C"
    ON CONFLICT (topic) DO UPDATE SET max_bytes = excluded.max_bytes WHERE t.max_bytes IS DISTINCT FROM excluded.max_bytes;

-- name: outbox/lock_topic
-- Lock a topic's row, so that operators return no messages while the relay sets others aside. No row if the lock
-- was lost.
SELECT FROM compactory.kafka_topic_info WHERE topic = %(topic)s AND (locked_by = %(holder)s OR %(holder)s IS NULL) FOR UPDATE;

-- name: outbox/set_aside
-- Move a message that Kafka refuses to the failed messages.
WITH gone AS (DELETE FROM compactory.kafka_messages WHERE topic = %(topic)s AND id = %(id)s RETURNING *)
INSERT INTO compactory.kafka_failed_messages (id, topic, key, payload, partition_key, headers, created_at, reason)
SELECT id, topic, key, payload, partition_key, headers, created_at, %(reason)s FROM gone;

-- name: outbox/hold_back
-- Move messages whose key waits for a failed message to the failed messages.
WITH gone AS (DELETE FROM compactory.kafka_messages AS m
               WHERE m.topic = %(topic)s AND m.id = ANY (%(ids)s)
                 AND EXISTS (SELECT FROM compactory.kafka_failed_messages AS f
                              WHERE f.topic = m.topic AND f.key = m.key)
              RETURNING m.*)
INSERT INTO compactory.kafka_failed_messages (id, topic, key, payload, partition_key, headers, created_at, reason)
SELECT id, topic, key, payload, partition_key, headers, created_at, NULL FROM gone;

-- name: outbox/status
-- All topics that a relay has seen, and the given ones: pending messages (counted up to 100,000 in all), the age
-- of the first in seconds, scheduled messages (counted in the same way), holder and error. Topics of scheduled
-- messages are searched one after the other.
WITH RECURSIVE later AS (
       (SELECT topic FROM compactory.kafka_scheduled_messages ORDER BY topic LIMIT 1)
        UNION ALL
       SELECT (SELECT m.topic FROM compactory.kafka_scheduled_messages AS m WHERE m.topic > l.topic ORDER BY m.topic LIMIT 1)
         FROM later AS l WHERE l.topic IS NOT NULL)
SELECT i.topic, i.locked_by, extract(epoch FROM clock_timestamp() - i.locked_at)::float8 AS locked_seconds, i.error, i.retries,
       i.last_error, i.max_bytes, p.pending, p.pending >= s.most AS more, p.oldest, f.failed, f.waiting, l.scheduled
  FROM (SELECT greatest(1, 100000 / (1 + count(*))) AS most FROM compactory.kafka_topic_info) AS s
 CROSS JOIN (SELECT topic, locked_by, locked_at, error, retries, last_error, max_bytes, reached FROM compactory.kafka_topic_info
         UNION ALL
        SELECT topic, NULL, NULL, false, 0, NULL, NULL, 0 FROM (SELECT unnest(%(topics)s::text[]) AS topic UNION SELECT topic FROM later) AS t
         WHERE topic IS NOT NULL AND NOT EXISTS (SELECT FROM compactory.kafka_topic_info AS k WHERE k.topic = t.topic)) AS i
  JOIN LATERAL (SELECT count(*) AS pending,
                       coalesce(extract(epoch FROM clock_timestamp() - (SELECT m.created_at FROM compactory.kafka_messages AS m
                                                                         WHERE m.topic = i.topic AND m.id > i.reached
                                                                         ORDER BY m.topic, m.id LIMIT 1))::float8, 0) AS oldest
                  FROM (SELECT FROM compactory.kafka_messages AS m WHERE m.topic = i.topic AND m.id > i.reached
                         ORDER BY m.topic, m.id LIMIT s.most) AS b) AS p ON true
  JOIN LATERAL (SELECT count(*) FILTER (WHERE reason IS NOT NULL) AS failed, count(*) FILTER (WHERE reason IS NULL) AS waiting
                  FROM compactory.kafka_failed_messages AS m WHERE m.topic = i.topic) AS f ON true
  JOIN LATERAL (SELECT count(*) AS scheduled
                  FROM (SELECT FROM compactory.kafka_scheduled_messages AS m WHERE m.topic = i.topic LIMIT s.most) AS b) AS l ON true
 ORDER BY i.topic;

-- name: outbox/failed
-- Messages that Kafka refused, or that wait for such a message.
SELECT id, topic, key, octet_length(payload) AS bytes, created_at, failed_at, reason
  FROM compactory.kafka_failed_messages
 WHERE (%(topic)s::text IS NULL OR topic = %(topic)s) AND (%(ids)s::int8[] IS NULL OR id = ANY (%(ids)s))
 ORDER BY topic, id LIMIT %(limit)s;

-- name: outbox/chosen
-- Failed messages that an operator selects, by topic. Messages that wait for another are included if "waiting" is
-- true.
SELECT topic, array_agg(id ORDER BY id) AS ids
  FROM compactory.kafka_failed_messages
 WHERE (%(topic)s::text IS NULL OR topic = %(topic)s) AND (%(ids)s::int8[] IS NULL OR id = ANY (%(ids)s))
   AND (reason IS NOT NULL OR %(waiting)s)
 GROUP BY topic ORDER BY topic;

-- name: outbox/drop
-- Delete failed messages.
DELETE FROM compactory.kafka_failed_messages WHERE topic = %(topic)s AND id = ANY (%(ids)s);

-- name: outbox/drop_unsent
-- Delete messages of a topic that Kafka does not have, and clear that error. The caller has locked the topic's
-- row.
WITH missing AS (
    UPDATE compactory.kafka_topic_info SET error = false, retries = 0, last_error = NULL
     WHERE topic = %(topic)s AND locked_by IS NULL AND error AND error_at IS NULL
    RETURNING topic)
DELETE FROM compactory.kafka_messages AS m USING missing WHERE m.topic = missing.topic;

-- name: outbox/put_back
-- Return failed messages to the outbox, to be sent again.
WITH gone AS (DELETE FROM compactory.kafka_failed_messages WHERE topic = %(topic)s AND id = ANY (%(ids)s) RETURNING *)
INSERT INTO compactory.kafka_messages (id, topic, key, payload, partition_key, headers, created_at)
OVERRIDING SYSTEM VALUE
SELECT id, topic, key, payload, partition_key, headers, created_at FROM gone RETURNING id;

-- name: outbox/put_back_freed
-- Return messages that waited for a failed message of their key, once the key has none.
WITH gone AS (DELETE FROM compactory.kafka_failed_messages AS f
               WHERE f.topic = %(topic)s AND f.reason IS NULL
                 AND NOT EXISTS (SELECT FROM compactory.kafka_failed_messages AS o
                                  WHERE o.topic = f.topic AND o.key = f.key AND o.reason IS NOT NULL)
              RETURNING f.*)
INSERT INTO compactory.kafka_messages (id, topic, key, payload, partition_key, headers, created_at)
OVERRIDING SYSTEM VALUE
SELECT id, topic, key, payload, partition_key, headers, created_at FROM gone RETURNING id;

-- name: outbox/rewind
-- Make relays read again from this id on, because messages came back.
UPDATE compactory.kafka_topic_info
   SET reached = least(reached, %(first)s - 1), rewinds = rewinds + 1, error = false WHERE topic = %(topic)s;

-- name: outbox/topics
-- Topics that relays have seen, and the given one if it has messages.
SELECT topic FROM compactory.kafka_topic_info
 UNION SELECT topic FROM (SELECT topic FROM compactory.kafka_messages WHERE topic = %(topic)s LIMIT 1) AS m;
