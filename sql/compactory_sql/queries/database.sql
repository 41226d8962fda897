-- Connections of source, outbox, jobs and sink: their settings, whether the server works, and NOTIFY for who sleeps.

-- name: database/settings
-- Apply session settings that this server version has, and return the backend's pid. Settings that are not formats
-- keep the value from the connection's options.
SELECT pg_backend_pid(), count(set_config(s.name, w.value, false))
  FROM unnest(%(names)s::text[], %(values)s::text[]) AS w (name, value)
  JOIN pg_settings AS s ON s.name = w.name
 WHERE s.source <> 'client' OR w.name = ANY(%(formats)s::text[]);

-- name: database/at_work
-- Whether the backend with this pid still works on its statement. If it ended some seconds ago, the client should
-- have the answer.
SELECT state NOT LIKE 'idle%%' OR state_change > clock_timestamp() - interval '3 seconds' AS at_work
  FROM pg_stat_activity WHERE pid = %s;

-- name: database/sleep
-- Lock the keys for which this connection sleeps; from then on writers of these tables send NOTIFY. A second
-- statement takes the snapshot, so that it is newer than the locks.
SELECT key FROM unnest({keys}::int[]) AS key WHERE pg_try_advisory_lock({class}, key);
SELECT pg_current_snapshot()::text AS snapshot;

-- name: database/sleepers
-- Keys for which another connection sleeps, while the caller holds the lock shared. A second statement takes the
-- snapshot: a writer that it does not show finds the sleeper and notifies it.
SELECT key
  FROM pg_locks AS l JOIN unnest({keys}::int[]) AS key ON l.objid = key::int8::oid
 WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND l.mode = 'ExclusiveLock' AND l.pid <> pg_backend_pid()
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.classid = {class}::int8::oid;
SELECT pg_current_snapshot()::text AS snapshot;

-- name: database/wake
-- Release the locks of these keys: writers stop sending NOTIFY.
SELECT bool_and(pg_advisory_unlock({class}, key)) AS awake FROM unnest({keys}::int[]) AS key;

-- name: database/note_handled
-- Note ids of messages as handled; return those that are new. Deletes up to two expired ids for each new one, so
-- that the table stays as large as a week of messages.
WITH gone AS (DELETE FROM compactory.kafka_handled_messages
               WHERE ctid = ANY (ARRAY(SELECT ctid FROM compactory.kafka_handled_messages
                                        WHERE handled_at < clock_timestamp() - %(keep)s
                                        ORDER BY handled_at LIMIT 2 * cardinality(%(ids)s::text[]) FOR UPDATE SKIP LOCKED)))
INSERT INTO compactory.kafka_handled_messages (reader, topic, id)
SELECT %(reader)s, %(topic)s, id FROM unnest(%(ids)s::text[]) AS u (id) ORDER BY id
    ON CONFLICT DO NOTHING RETURNING id;
