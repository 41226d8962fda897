-- name: heartbeat/beat
-- Renew a connector's heartbeat. Return its time (ms since 1970) and how many heartbeats there were.
INSERT INTO compactory.heartbeats AS h (connector, beats, committed_at)
VALUES (%(connector)s, 1, clock_timestamp())
ON CONFLICT (connector) DO UPDATE SET beats = h.beats + 1, committed_at = excluded.committed_at
RETURNING (extract(epoch FROM committed_at) * 1000)::int8, beats;
