-- name: lease/server
-- Whether the server is a standby, and whether this role can write the lease table. Catalogue look-ups, because a
-- name in a schema without USAGE is refused before it is found. A role may be read-only by default, so that is
-- switched off.
SELECT pg_is_in_recovery() AS standby, quote_ident(current_user) AS role, l.oid IS NOT NULL AS installed,
       coalesce(has_schema_privilege(l.relnamespace, 'USAGE') AND has_table_privilege(l.oid, 'SELECT')
                AND has_table_privilege(l.oid, 'INSERT') AND has_table_privilege(l.oid, 'UPDATE'), false) AS writable
  FROM (SELECT set_config('default_transaction_read_only', 'off', false),
               set_config('synchronous_commit', 'off', false),
               set_config('statement_timeout', %(patience)s, false),
               set_config('lock_timeout', %(patience)s, false)) AS settings
  LEFT JOIN (SELECT c.oid, c.relnamespace FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
              WHERE n.nspname = 'compactory' AND c.relname = 'leases') AS l ON true;

-- name: lease/holder
-- The holder of the lease, and whether it can be taken: it was given back, or has expired. A renewal time in the
-- future was written before the server's clock was set back.
SELECT format('pid %%s on host %%s, since %%s', pid, host, date_trunc('second', taken_at)) AS words, epoch,
       holder IS NULL AS given_back,
       renewed_at NOT BETWEEN clock_timestamp() - %(ttl)s AND clock_timestamp() + %(ttl)s AS expired
  FROM compactory.leases
 WHERE connector = %(connector)s AND holder IS DISTINCT FROM %(holder)s;

-- name: lease/claim
-- Renew the own lease, or take one that is free or expired; no row if another process has it.
INSERT INTO compactory.leases AS l (connector, holder, host, pid, epoch, taken_at, renewed_at)
VALUES (%(connector)s, %(holder)s, %(host)s, %(pid)s, 1, clock_timestamp(), clock_timestamp())
ON CONFLICT (connector) DO UPDATE
   SET holder = excluded.holder, host = excluded.host, pid = excluded.pid,
       epoch = l.epoch + CASE WHEN l.holder = excluded.holder THEN 0 ELSE 1 END,
       taken_at = CASE WHEN l.holder = excluded.holder THEN l.taken_at ELSE excluded.taken_at END,
       renewed_at = excluded.renewed_at
 WHERE l.holder = excluded.holder OR l.holder IS NULL
    OR l.renewed_at NOT BETWEEN clock_timestamp() - %(ttl)s AND clock_timestamp() + %(ttl)s
RETURNING epoch;

-- name: lease/release
-- Give the own lease back, so that a standby need not wait until it expires.
UPDATE compactory.leases SET holder = NULL WHERE connector = %(connector)s AND holder = %(holder)s;

-- name: lease/lock
-- Try the advisory lock that replaces the lease where there is no lease row.
SELECT pg_try_advisory_lock(%(class)s, %(key)s) AS locked;

-- name: lease/unlock
-- Release that lock.
SELECT pg_advisory_unlock(%(class)s, %(key)s) AS unlocked;

-- name: lease/ping
-- Check that the session with the lock still exists.
SELECT 1;

-- name: lease/locked_by
-- The holder of the lock. The connection is named after its process.
SELECT format('%%s, since %%s', a.application_name, coalesce(date_trunc('second', a.backend_start)::text, '?')) AS words
  FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
 WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND l.pid <> pg_backend_pid()
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.classid = %(class)s::int8::oid AND l.objid = (%(key)s::int8 & 4294967295)::oid;

-- name: lease/can_store_sessions
-- Whether the lease table is installed, and this role may write it.
SELECT coalesce((SELECT has_schema_privilege(c.relnamespace, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
                        AND has_table_privilege(c.oid, 'UPDATE')
                   FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                  WHERE n.nspname = 'compactory' AND c.relname = 'leases'), false);

-- name: lease/add_session
-- Add a session id and remove those that no stored offset names; return the previous ones. No row without a lease.
WITH known AS (SELECT sessions FROM compactory.leases WHERE connector = %(connector)s FOR UPDATE),
     written AS (UPDATE compactory.leases AS l
                    SET sessions = ARRAY(SELECT s FROM unnest(l.sessions) AS s WHERE s = ANY (%(kept)s::uuid[]))
                                   || %(session)s::uuid
                  WHERE connector = %(connector)s)
SELECT sessions FROM known;
