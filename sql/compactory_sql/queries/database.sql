-- Connections of source, outbox, jobs and sink: their settings, whether the server works, and NOTIFY for who sleeps.

-- name: database/settings
-- The session's settings, as far as this version has them. Those that are no formats stay as the connection's options
-- have them. Then the backend's pid.
SELECT pg_backend_pid(), count(set_config(s.name, w.value, false))
  FROM unnest(%(names)s::text[], %(values)s::text[]) AS w (name, value)
  JOIN pg_settings AS s ON s.name = w.name
 WHERE s.source <> 'client' OR w.name = ANY(%(formats)s::text[]);

-- name: database/at_work
-- Whether the backend with this pid works on what it was asked for. Where it has been done for some seconds, the one
-- that asked should have the answer.
SELECT state NOT LIKE 'idle%%' OR state_change > clock_timestamp() - interval '3 seconds' AS at_work
  FROM pg_stat_activity WHERE pid = %s;

-- name: database/sleep
-- Announce for which keys this connection sleeps: from now on the writers of their tables send NOTIFY. The snapshot is
-- taken by a statement of its own, after the locks.
SELECT key FROM unnest({keys}::int[]) AS key WHERE pg_try_advisory_lock({class}, key);
SELECT pg_current_snapshot()::text AS snapshot;

-- name: database/sleepers
-- Keys for which another connection sleeps; writers hold the lock shared. The snapshot is taken after that, by a
-- statement of its own: where it does not show a writer, that writer finds the sleeper and notifies.
SELECT key
  FROM pg_locks AS l JOIN unnest({keys}::int[]) AS key ON l.objid = key::int8::oid
 WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND l.mode = 'ExclusiveLock' AND l.pid <> pg_backend_pid()
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.classid = {class}::int8::oid;
SELECT pg_current_snapshot()::text AS snapshot;

-- name: database/wake
-- This connection is awake for these keys: writers stay silent.
SELECT bool_and(pg_advisory_unlock({class}, key)) AS awake FROM unnest({keys}::int[]) AS key;

-- name: database/note_handled
-- Note ids of messages as handled; only those that were not. Twice as many ids go as come, once they are old, so that
-- the table stays as large as a week of messages.
WITH gone AS (DELETE FROM compactory.kafka_handled_messages
               WHERE ctid = ANY (ARRAY(SELECT ctid FROM compactory.kafka_handled_messages
                                        WHERE handled_at < clock_timestamp() - %(keep)s
                                        ORDER BY handled_at LIMIT 2 * cardinality(%(ids)s::text[]) FOR UPDATE SKIP LOCKED)))
INSERT INTO compactory.kafka_handled_messages (reader, topic, id)
SELECT %(reader)s, %(topic)s, id FROM unnest(%(ids)s::text[]) AS u (id) ORDER BY id
    ON CONFLICT DO NOTHING RETURNING id;

-- name: database/forget_handled
DELETE FROM compactory.kafka_handled_messages
 WHERE reader = %(reader)s AND topic = %(topic)s AND id = ANY (%(ids)s::text[]);
