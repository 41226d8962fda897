-- name: jobs/enqueue
-- Enqueue jobs in their order; return their ids in the same order.
SELECT compactory.enqueue_all(%(types)s::text[], %(payloads)s::text[], %(groups)s::text[], %(origins)s::text[],
                              %(places)s::int[], %(run_ats)s::timestamptz[], %(last_only)s::boolean[],
                              %(unique_keys)s::text[], %(headers)s::text[]);

-- name: jobs/settings
-- The settings of an executor's session. A claim is on disk before its handler runs. Tables with few rows and many
-- dead ones mislead the planner, although one index is always right: so other plans are off, and each statement is
-- planned once.
SELECT set_config(name, value, false)
  FROM (VALUES ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'), ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'),
               ('enable_material', 'off'), ('plan_cache_mode', 'force_generic_plan'), ('jit', 'off'),
               ('max_parallel_workers_per_gather', '0'), ('lock_timeout', '5s'), ('default_transaction_isolation', 'read committed'),
               ('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                                      ELSE current_setting('synchronous_commit') END)) AS s (name, value);

-- name: jobs/server
-- Whether executors can use this database.
SELECT pg_is_in_recovery() AS standby, EXISTS (SELECT FROM pg_attribute
        WHERE attrelid = to_regclass('compactory.job_limits') AND attname = 'kind') AS installed;

-- name: jobs/rights
-- The rights that an executor's role lacks. By oid, because a name in a schema without USAGE is refused before it
-- is found.
SELECT quote_ident(current_user) AS role, concat(string_agg(needed, ', '), ' ON ',
       CASE relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END, nspname, '.', relname) AS lacking
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  JOIN (VALUES ('jobs', 'SELECT'), ('jobs_live', 'SELECT'), ('jobs_live', 'UPDATE'), ('jobs_live', 'DELETE'), ('jobs_live', 'INSERT'),
               ('jobs_finished', 'SELECT'), ('jobs_finished', 'INSERT'), ('jobs_finished', 'DELETE'), ('jobs_id_seq', 'USAGE'),
               ('jobs_id_seq', 'SELECT'), ('job_executors', 'SELECT'), ('job_executors', 'INSERT'), ('job_executors', 'UPDATE'),
               ('job_executors', 'DELETE'), ('job_ticks', 'SELECT'), ('job_ticks', 'INSERT'), ('job_ticks', 'UPDATE'),
               ('paused', 'SELECT'), ('job_limits', 'SELECT'), ('job_rates', 'SELECT'), ('job_rates', 'INSERT'),
               ('job_rates', 'UPDATE')) AS w (name, needed)
    ON w.name = c.relname
 WHERE n.nspname = 'compactory'
   AND NOT (has_schema_privilege(n.oid, 'USAGE') AND CASE relkind WHEN 'S' THEN has_sequence_privilege(c.oid, needed)
                                                     ELSE has_table_privilege(c.oid, needed) END)
 GROUP BY nspname, relname, relkind;

-- name: jobs/register
-- Register an executor and return its id. The names of its sessions contain the id, so that others can end them
-- after its lease has expired.
INSERT INTO compactory.job_executors (name, pool, types) VALUES (%(name)s, %(pool)s, %(types)s) RETURNING id;

-- name: jobs/registered
-- A row if the executor is still registered.
SELECT FROM compactory.job_executors WHERE id = %s::int8;

-- name: jobs/unregister
-- Remove an executor that has ended.
DELETE FROM compactory.job_executors WHERE id = %(executor)s;

-- name: jobs/beat
-- Renew the heartbeat of one executor. Return all executors, with "mine" for this one and "lapsed" for an expired
-- heartbeat. After a restart of the server, executors get time to come back. A heartbeat in the future was written
-- before the server's clock was set back. The name is compared too: after the restore of a backup another executor
-- may have the id.
WITH mine AS (UPDATE compactory.job_executors SET beat_at = clock_timestamp()
               WHERE id = %(executor)s AND name = %(name)s RETURNING id)
SELECT e.id, e.pool, e.id IN (SELECT id FROM mine) AS mine,
       e.id NOT IN (SELECT id FROM mine)
       AND e.beat_at NOT BETWEEN clock_timestamp() - %(ttl)s AND clock_timestamp() + %(ttl)s
       AND pg_postmaster_start_time() < clock_timestamp() - %(ttl)s AS lapsed
  FROM compactory.job_executors AS e ORDER BY e.id;

-- name: jobs/unregister_expired
-- Remove an executor whose heartbeat has expired, unless it was renewed meanwhile.
DELETE FROM compactory.job_executors
 WHERE id = %(executor)s AND beat_at NOT BETWEEN clock_timestamp() - %(ttl)s AND clock_timestamp() + %(ttl)s;

-- name: jobs/fence
-- End the sessions of an executor that is no longer registered; return how many there still are.
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE 'compactory-jobs ' || %(executor)s || ' %%';

-- name: jobs/fence_keeper
-- End sessions of an earlier connection of this executor's keeper; return how many there were.
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = %(session)s AND pid <> pg_backend_pid();

-- name: jobs/fence_handlers
-- End lost sessions of this executor's handlers; return those that still exist.
SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND pid = ANY (%(pids)s) AND application_name = 'compactory-jobs ' || %(executor)s || ' handler';

-- name: jobs/return_unreceived
-- Return jobs to the queue that this executor claimed without receiving the answer.
UPDATE compactory.jobs_live
   SET state = 'scheduled', run_at = clock_timestamp(), attempt = attempt - 1, executor = NULL, token = NULL
 WHERE state = 'running' AND executor = %(executor)s AND NOT id = ANY (%(held)s::int8[]);

-- name: jobs/orphans
-- Ids of executors that have running jobs but are not registered.
SELECT DISTINCT executor FROM compactory.jobs_live
 WHERE state = 'running' AND executor NOT IN (SELECT id FROM compactory.job_executors);

-- name: jobs/rescue
-- Return the jobs of a dead executor to the queue, once its sessions have ended. The attempt does not count, but
-- the fifth rescue is the last. The jobs become due at different times, so that a job that kills its executor
-- takes few others along.
UPDATE compactory.jobs_live
   SET state = CASE WHEN cancelling OR rescues < 4 THEN 'scheduled' ELSE 'failed' END,
       last_error = 'its executor ' || executor || ' died', run_at = clock_timestamp() + (rescues + 1) * random() * %(spread)s,
       rescues = rescues + 1, attempt = attempt - 1, executor = NULL, token = NULL,
       finished_at = CASE WHEN NOT cancelling AND rescues >= 4 THEN clock_timestamp() END
 WHERE state = 'running' AND executor = %(executor)s
   AND NOT EXISTS (SELECT FROM compactory.job_executors WHERE id = %(executor)s)
RETURNING id, type, state;

-- name: jobs/newest
-- The last number that was assigned to a job or a position.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS id FROM compactory.jobs_id_seq;

-- name: jobs/promote
-- Assign positions to jobs that have become due, after all others. Rows are locked first, so that the transaction
-- has its id before they have positions. statement_timestamp() can use an index, clock_timestamp() can't.
UPDATE compactory.jobs_live AS j SET position = nextval('compactory.jobs_id_seq')
  FROM (SELECT id FROM compactory.jobs_live
         WHERE state = 'scheduled' AND position IS NULL AND run_at <= statement_timestamp() AND run_at >= %(since)s::timestamptz
           AND type = ANY (%(types)s) AND place %% %(of)s = ANY (%(partitions)s::int[])
         ORDER BY run_at LIMIT %(most)s FOR UPDATE SKIP LOCKED) AS due
 WHERE j.id = due.id;

-- name: jobs/claim
-- Claim due jobs without a group, after a given position, and name the groups of the others. The first row has the
-- state of the queue: "last" is the highest position if there may be more, "skipped" says that a row was locked. Paused
-- types and groups are left out. "by_row": there are limits of tenants or of groups, so tenant and group are compared:
-- only jobs of this tenant or prefix (NULL: any), and none of other tenants and prefixes that have limits.
WITH ended AS (SELECT min(r.low) AS low
                 FROM unnest(%(running)s::text[]::xid8[], %(lows)s::int8[]) AS r (xid, low)
                WHERE pg_visible_in_snapshot(r.xid, pg_current_snapshot())),
found AS MATERIALIZED (
    SELECT id, "group", position FROM compactory.jobs_live
     WHERE state = 'scheduled' AND position IS NOT NULL AND position > least(%(start)s, (SELECT low FROM ended))
       AND type = ANY (%(claimed_types)s) AND ("group" = ANY (%(paused_groups)s::text[])) IS NOT TRUE
       AND place %% %(of)s = ANY (%(partitions)s::int[])
       AND CASE WHEN %(by_row)s
                THEN (%(tenant)s::text IS NULL OR headers ->> %(header)s::text = %(tenant)s)
                 AND (headers ->> %(header)s::text = ANY (%(other_tenants)s::text[])) IS NOT TRUE
                 AND (%(prefix)s::text IS NULL OR "group" ^@ %(prefix)s)
                 AND ("group" ^@ ANY (%(other_prefixes)s::text[])) IS NOT TRUE
                ELSE true END
     ORDER BY position LIMIT %(limit)s),
free AS MATERIALIZED (
    SELECT j.id FROM found JOIN compactory.jobs_live AS j ON j.id = ANY (ARRAY[found.id])
     WHERE found."group" IS NULL AND j.state = 'scheduled'
     ORDER BY found.id FOR UPDATE OF j SKIP LOCKED),
taken AS (
    UPDATE compactory.jobs_live AS j
       SET state = 'running', position = NULL, attempt = attempt + 1, executor = %(executor)s, token = %(token)s,
           started_at = clock_timestamp(), limited = %(limited)s
      FROM free WHERE j.id = ANY (ARRAY[free.id])
    RETURNING j.id, j.type, j."group", j.origin, j.place, j.attempt, j.token, j.rescues, j.cancelling,
              j.payload::text AS payload, j.headers, j.run_at, j.created_at)
SELECT NULL::int8, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       jsonb_build_object('snapshot', pg_current_snapshot()::text, 'own', pg_current_xact_id()::text,
                          'newest', (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM compactory.jobs_id_seq),
                          'last', CASE WHEN (SELECT count(*) FROM found) = %(limit)s THEN (SELECT max(position) FROM found) END,
                          'groups', (SELECT coalesce(jsonb_agg(DISTINCT "group"), '[]') FROM found WHERE "group" IS NOT NULL),
                          'skipped', (SELECT count(*) FROM found WHERE "group" IS NULL) > (SELECT count(*) FROM free),
                          'clock', clock_timestamp(),
                          'later', (SELECT extract(epoch FROM min(l.run_at) - clock_timestamp()) FROM
                                     (SELECT run_at FROM compactory.jobs_live
                                       WHERE state = 'scheduled' AND position IS NULL AND run_at > statement_timestamp()
                                       ORDER BY run_at LIMIT 1) AS l)),
       NULL, NULL
 UNION ALL SELECT * FROM taken;

-- name: jobs/lock_groups
-- Lock the groups that no other session claims now, and note them for this transaction. The next statement then
-- sees all earlier claims of these groups.
SELECT set_config('compactory.locked_groups', coalesce(array_agg(g), '{}')::text, true)
  FROM unnest(%(groups)s::text[]) AS g WHERE pg_try_advisory_xact_lock(%(class)s, hashtext(g));

-- name: jobs/supersede
-- Cancel scheduled jobs of locked groups that have a newer job of their type with last_only.
WITH newer AS MATERIALIZED (
    SELECT "group", type, max(id) AS id FROM compactory.jobs_live
     WHERE last_only AND "group" = ANY (current_setting('compactory.locked_groups')::text[]) AND state <> 'failed'
     GROUP BY "group", type),
gone AS (
    DELETE FROM compactory.jobs_live AS j USING newer AS n
     WHERE j."group" = n."group" AND j.type = n.type AND j.id < n.id AND j.state = 'scheduled'
    RETURNING j.*, n.id AS newer)
INSERT INTO compactory.jobs_finished (id, type, state, "group", origin, place, payload, headers, run_at, last_only, unique_key,
                                      created_at, attempt, rescues, finished_at, last_error)
SELECT id, type, 'cancelled', "group", origin, place, payload, headers, run_at, last_only, unique_key, created_at, attempt,
       rescues, clock_timestamp(), 'superseded by job ' || newer FROM gone;

-- name: jobs/claim_groups
-- Claim the first jobs of locked groups in which no job runs, as far as they are due and belong to this executor.
-- Jobs without "holds" that are not due are ignored. If the first job of a freed group belongs to another executor,
-- it becomes due again, so that the executor finds it. The first row names the locked groups.
WITH heads AS MATERIALIZED (
    SELECT g, h.id, h.due, h.mine, bool_and(h.due AND h.mine) OVER w AS ready, row_number() OVER w = 1 AS first
      FROM unnest(current_setting('compactory.locked_groups')::text[]) AS g
      JOIN LATERAL (SELECT j.id, j.state = 'scheduled' AND j.position IS NOT NULL AS due,
                           j.type = ANY (%(claimed_types)s) AND j.place %% %(of)s = ANY (%(partitions)s::int[])
                           AND CASE WHEN %(by_row)s
                                    THEN (%(tenant)s::text IS NULL OR j.headers ->> %(header)s::text IS NOT DISTINCT FROM %(tenant)s)
                                     AND (j.headers ->> %(header)s::text = ANY (%(other_tenants)s::text[])) IS NOT TRUE
                                     AND (%(prefix)s::text IS NULL OR j."group" ^@ %(prefix)s)
                                     AND (j."group" ^@ ANY (%(other_prefixes)s::text[])) IS NOT TRUE
                                    ELSE true END AS mine
                      FROM compactory.jobs_live AS j
                     WHERE j."group" = g AND (j.holds OR j.position IS NOT NULL)
                     ORDER BY j."group", j.id LIMIT %(depth)s) AS h ON true
     WHERE NOT EXISTS (SELECT FROM compactory.jobs_live AS r WHERE r.state = 'running' AND r."group" = g)
    WINDOW w AS (PARTITION BY g ORDER BY h.id)),
taken AS (
    UPDATE compactory.jobs_live AS j
       SET state = 'running', position = NULL, attempt = attempt + 1, executor = %(executor)s, token = %(token)s,
           started_at = clock_timestamp(), limited = %(limited)s
      FROM heads AS h
     WHERE j.id = ANY (ARRAY[h.id]) AND j.state = 'scheduled' AND h.ready
    RETURNING j.id, j.type, j."group", j.origin, j.place, j.attempt, j.token, j.rescues, j.cancelling,
              j.payload::text AS payload, j.headers, j.run_at, j.created_at),
shown AS (
    UPDATE compactory.jobs_live AS j SET position = NULL, run_at = clock_timestamp()
      FROM heads AS h
     WHERE j.id = h.id AND h.first AND h.due AND NOT h.mine AND h.g = ANY (%(freed)s::text[]) AND j.state = 'scheduled'
    RETURNING pg_notify('compactory_jobs', ''))
SELECT NULL::int8, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       jsonb_build_object('locked', to_jsonb(current_setting('compactory.locked_groups')::text[]), 'shown', (SELECT count(*) FROM shown)),
       NULL, NULL
 UNION ALL SELECT * FROM taken;

-- name: jobs/notify
-- Wake all sleeping executors.
SELECT pg_notify('compactory_jobs', '');

-- name: jobs/finish
-- End attempts, each by its token, which only a running job has. Return the ids of jobs that still had the token.
-- A job that is to be cancelled ends as cancelled, whatever its outcome. A type without history leaves nothing of
-- jobs that succeed. The state is not in the condition: with
-- it the planner would use the index of running jobs, which has many dead entries. "= ANY (ARRAY[id])" forces a
-- look-up: for "=" the planner scans all of jobs_live_pkey when it expects few rows.
WITH o AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(outcomes)s::json)
        AS o (id int8, token int8, state text, delay float8, error text, holds boolean, refund int, history boolean)),
gone AS (
    DELETE FROM compactory.jobs_live AS j USING o
     WHERE j.id = ANY (ARRAY[o.id]) AND j.token = o.token
       AND (o.state IN ('succeeded', 'cancelled') OR j.cancelling)
    RETURNING j.*, CASE o.state WHEN 'succeeded' THEN o.state ELSE 'cancelled' END AS outcome, o.error,
              o.history OR o.state <> 'succeeded' AS has_history),
kept AS (
    UPDATE compactory.jobs_live AS j
       SET state = o.state, run_at = CASE o.state WHEN 'scheduled' THEN clock_timestamp() + o.delay * interval '1 second' ELSE run_at END,
           attempt = j.attempt - o.refund, executor = NULL, token = NULL, holds = o.holds AND j.holds,
           last_error = coalesce(o.error, j.last_error), finished_at = CASE o.state WHEN 'failed' THEN clock_timestamp() END
      FROM o
     WHERE j.id = ANY (ARRAY[o.id]) AND j.token = o.token
       AND NOT (o.state IN ('succeeded', 'cancelled') OR j.cancelling)
    RETURNING j.id),
moved AS (
    INSERT INTO compactory.jobs_finished (id, type, state, "group", origin, place, payload, headers, run_at, last_only, unique_key,
                                          created_at, attempt, rescues, executor, started_at, finished_at, last_error)
    SELECT id, type, outcome, "group", origin, place, payload, headers, run_at, last_only, unique_key, created_at, attempt,
           rescues, executor, started_at, clock_timestamp(), coalesce(error, last_error) FROM gone WHERE has_history)
SELECT id FROM gone UNION ALL SELECT id FROM kept;

-- name: jobs/cancelling
-- Attempts of this list that an operator has cancelled. By id, because the index of running jobs has many dead
-- entries.
SELECT id FROM compactory.jobs_live WHERE id = ANY (%(ids)s::int8[]) AND state = 'running' AND cancelling;

-- name: jobs/expire
-- Delete some of the finished jobs that have expired. One executor does it at a time. No row is locked before, because
-- that would need the right UPDATE.
DELETE FROM compactory.jobs_finished
 WHERE id IN (SELECT id FROM compactory.jobs_finished
               WHERE finished_at < statement_timestamp() - %(keep)s AND (SELECT pg_try_advisory_xact_lock(1129140298, 1))
               ORDER BY finished_at LIMIT 10000);

-- name: jobs/clock
-- The time that all executors use.
SELECT clock_timestamp();

-- name: jobs/take_tick
-- Take a tick of a periodic job; a row if no other executor had it. A new name starts with the next tick.
WITH tick AS (
    INSERT INTO compactory.job_ticks AS t (name, tick) VALUES (%(name)s, %(tick)s)
    ON CONFLICT (name) DO UPDATE SET tick = excluded.tick WHERE t.tick < excluded.tick
    RETURNING xmax <> 0 AS known)
SELECT known FROM tick WHERE known;

-- name: jobs/status
-- Counts of the first 100,000 unfinished jobs by type and state, the age of the oldest due job in seconds, and the
-- number of executors that know the type.
SELECT s.type, s.state, s.jobs, s.oldest,
       (SELECT count(*) FROM compactory.job_executors AS e WHERE s.type = ANY (e.types)) AS executors
  FROM (SELECT type, state, count(*) AS jobs,
               coalesce(extract(epoch FROM clock_timestamp() - min(run_at) FILTER (WHERE run_at <= clock_timestamp())), 0)::float8 AS oldest
          FROM (SELECT type, state, run_at FROM compactory.jobs_live LIMIT 100000) AS j GROUP BY type, state) AS s
 ORDER BY s.type, s.state;

-- name: jobs/executors
-- The registered executors, their running jobs, and the seconds since their last heartbeat.
SELECT e.id, e.name, e.pool, extract(epoch FROM clock_timestamp() - e.beat_at)::float8 AS silent,
       (SELECT count(*) FROM compactory.jobs_live AS j WHERE j.state = 'running' AND j.executor = e.id) AS running
  FROM compactory.job_executors AS e ORDER BY e.id;

-- name: jobs/list
-- The jobs that an operator selects, newest first; with an act only jobs that it can change.
SELECT id, type, state, "group", origin, attempt, run_at, created_at, finished_at, last_error, payload, headers, executor
  FROM compactory.jobs
 WHERE state = ANY (%(states)s) AND (%(ids)s::int8[] IS NULL OR id = ANY (%(ids)s))
   AND (%(type)s::text IS NULL OR type = %(type)s) AND (%(group)s::text IS NULL OR "group" = %(group)s)
   AND (%(tenant)s::text IS NULL OR headers ->> %(header)s::text = %(tenant)s)
   AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s) AND (%(until)s::timestamptz IS NULL OR created_at < %(until)s)
   AND (%(payload)s::jsonb IS NULL OR payload @> %(payload)s::jsonb)
   AND CASE %(act)s::text WHEN 'run-now' THEN run_at > statement_timestamp()
                          WHEN 'retry' THEN state <> 'scheduled' OR attempt > 0 ELSE true END
   AND (%(before_id)s::int8 IS NULL OR id < %(before_id)s)
 ORDER BY id DESC LIMIT %(limit)s;

-- name: jobs/lock
-- Wait until no other transaction has the job locked.
SELECT FROM compactory.jobs_live WHERE id = %(id)s FOR UPDATE;

-- name: jobs/lock_free
-- Lock the jobs that an act can change. Those that another transaction has locked are returned as busy. Finished jobs
-- are not locked.
WITH chosen AS MATERIALIZED (
    SELECT id FROM compactory.jobs_live
     WHERE id = ANY (%(ids)s::int8[]) AND state = ANY (%(states)s)
       AND CASE %(act)s::text WHEN 'run-now' THEN run_at > statement_timestamp()
                              WHEN 'retry' THEN state <> 'scheduled' OR attempt > 0 ELSE true END),
free AS MATERIALIZED (
    SELECT j.id FROM chosen JOIN compactory.jobs_live AS j ON j.id = chosen.id
     WHERE j.state = ANY (%(states)s) FOR UPDATE OF j SKIP LOCKED)
SELECT id, id NOT IN (SELECT id FROM free) AS busy FROM chosen
 UNION ALL SELECT id, false FROM compactory.jobs_finished WHERE id = ANY (%(ids)s::int8[]) AND state = ANY (%(states)s);

-- name: jobs/run_now
-- Make locked jobs due. Like jobs/retry and jobs/cancel, return ids, and the group of each job that is gone.
UPDATE compactory.jobs_live SET run_at = clock_timestamp(), position = NULL
 WHERE id = ANY (%(ids)s::int8[]) RETURNING id, NULL AS "group";

-- name: jobs/retry
-- Run locked jobs and cancelled jobs from their first attempt.
WITH gone AS (
    DELETE FROM compactory.jobs_finished AS j WHERE state = 'cancelled' AND id = ANY (%(ids)s::int8[]) RETURNING j.*),
back AS (
    INSERT INTO compactory.jobs_live (id, type, "group", origin, place, payload, headers, run_at, last_only, unique_key, created_at, last_error)
    SELECT id, type, "group", origin, place, payload, headers, clock_timestamp(), last_only, unique_key, created_at, last_error
      FROM gone RETURNING id),
again AS (
    UPDATE compactory.jobs_live SET state = 'scheduled', run_at = clock_timestamp(), position = NULL, attempt = 0, rescues = 0,
           finished_at = NULL, holds = true
     WHERE id = ANY (%(ids)s::int8[]) RETURNING id)
SELECT id, NULL AS "group" FROM back UNION ALL SELECT id, NULL FROM again;

-- name: jobs/cancel
-- Cancel locked jobs that are scheduled or failed, and mark running ones as cancelling.
WITH gone AS (
    DELETE FROM compactory.jobs_live AS j WHERE id = ANY (%(ids)s::int8[]) AND state <> 'running' RETURNING j.*),
asked AS (
    UPDATE compactory.jobs_live SET cancelling = true WHERE id = ANY (%(ids)s::int8[]) AND state = 'running' RETURNING id),
moved AS (
    INSERT INTO compactory.jobs_finished (id, type, state, "group", origin, place, payload, headers, run_at, last_only, unique_key,
                                          created_at, attempt, rescues, finished_at, last_error)
    SELECT id, type, 'cancelled', "group", origin, place, payload, headers, run_at, last_only, unique_key, created_at, attempt,
           rescues, clock_timestamp(), coalesce(last_error, 'cancelled by an operator') FROM gone RETURNING id, "group")
SELECT id, "group" FROM moved UNION ALL SELECT id, NULL FROM asked;

-- name: jobs/next_of_groups
-- Make the first job of groups that lost a job due again. A locked one is being claimed.
UPDATE compactory.jobs_live AS j SET position = NULL, run_at = clock_timestamp()
  FROM (SELECT n.id
          FROM unnest(%(groups)s::text[]) AS g
          JOIN LATERAL (SELECT id FROM compactory.jobs_live AS n WHERE n."group" = g ORDER BY n."group", n.id LIMIT 1) AS h ON true
          JOIN compactory.jobs_live AS n ON n.id = h.id
         WHERE n.state = 'scheduled' AND n.position IS NOT NULL
           FOR UPDATE OF n SKIP LOCKED) AS first
 WHERE j.id = first.id;

-- name: jobs/types
-- Types that registered executors know, or that the first 100,000 unfinished jobs have.
SELECT unnest(types) FROM compactory.job_executors
 UNION SELECT type FROM (SELECT type FROM compactory.jobs_live LIMIT 100000) AS j;

-- name: jobs/group
-- A row if the group has unfinished jobs.
SELECT "group" FROM compactory.jobs_live WHERE "group" = %(group)s LIMIT 1;

-- name: jobs/search_limited
-- Find due jobs with limits after a given position. The first row has the state of the queue, see jobs/claim; the others
-- the lowest position for each limited type, longest limited prefix and limited tenant.
WITH ended AS (SELECT min(r.low) AS low
                 FROM unnest(%(running)s::text[]::xid8[], %(lows)s::int8[]) AS r (xid, low)
                WHERE pg_visible_in_snapshot(r.xid, pg_current_snapshot())),
found AS MATERIALIZED (
    SELECT type, "group", headers ->> %(header)s::text AS tenant, position FROM compactory.jobs_live
     WHERE state = 'scheduled' AND position IS NOT NULL AND position > least(%(start)s, (SELECT low FROM ended))
       AND type = ANY (%(claimed_types)s) AND ("group" = ANY (%(paused_groups)s::text[])) IS NOT TRUE
       AND place %% %(of)s = ANY (%(partitions)s::int[])
       AND (type = ANY (%(limited_types)s::text[]) OR headers ->> %(header)s::text = ANY (%(other_tenants)s::text[])
            OR "group" ^@ ANY (%(other_prefixes)s::text[]))
     ORDER BY position LIMIT %(limit)s),
keys AS (
    SELECT CASE WHEN type = ANY (%(limited_types)s::text[]) THEN type END AS type,
           (SELECT p FROM unnest(%(other_prefixes)s::text[]) AS p WHERE "group" ^@ p ORDER BY length(p) DESC LIMIT 1) AS prefix,
           CASE WHEN tenant = ANY (%(other_tenants)s::text[]) THEN tenant END AS tenant, position
      FROM found)
SELECT NULL, NULL, NULL, NULL,
       jsonb_build_object('snapshot', pg_current_snapshot()::text, 'own', pg_current_xact_id()::text,
                          'newest', (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM compactory.jobs_id_seq),
                          'last', CASE WHEN (SELECT count(*) FROM found) = %(limit)s THEN (SELECT max(position) FROM found) END)
 UNION ALL (SELECT type, prefix, tenant, min(position), NULL FROM keys GROUP BY type, prefix, tenant);

-- name: jobs/declare_limits
-- Keep the limits that the handlers of an executor declare, and notify the others.
UPDATE compactory.job_executors SET limits = %(limits)s::jsonb WHERE id = %(executor)s RETURNING pg_notify('compactory_jobs', 'limits');

-- name: jobs/limits
-- The limits in force: of operators, and of handlers for types without one. The smallest limits of handlers count.
SELECT kind, name, running, rate_count, rate_seconds, true AS by_operator FROM compactory.job_limits
 UNION ALL
(SELECT 'type', r.name, min(r.running), (array_agg(r.rate_count ORDER BY r.rate_count::float8 / r.rate_seconds, r.rate_count))[1],
        (array_agg(r.rate_seconds ORDER BY r.rate_count::float8 / r.rate_seconds, r.rate_count))[1], false
   FROM compactory.job_executors AS e,
        jsonb_to_recordset(e.limits) AS r (name text, running int, rate_count int, rate_seconds int)
  WHERE NOT EXISTS (SELECT FROM compactory.job_limits AS l WHERE l.kind = 'type' AND l.name = r.name)
  GROUP BY r.name)
 ORDER BY kind, name;

-- name: jobs/limited_running
-- How many jobs with limits run or are claimed, by type, group and tenant.
SELECT type, "group", headers ->> %(header)s::text, count(*) FROM compactory.jobs_live
 WHERE state = 'running' AND limited GROUP BY 1, 2, 3;

-- name: jobs/mark_limited
-- Count the running jobs of an executor that have a limit now.
UPDATE compactory.jobs_live SET limited = true
 WHERE state = 'running' AND executor = %(executor)s AND limited IS NOT TRUE
   AND (type = ANY (%(types)s::text[]) OR headers ->> %(header)s::text = ANY (%(tenants)s::text[])
        OR "group" ^@ ANY (%(prefixes)s::text[]));

-- name: jobs/lock_limits
-- Lock limits until the end of the transaction. The next statement then sees all earlier claims.
SELECT bool_and(pg_try_advisory_xact_lock(%(class)s, hashtext(l.kind || ' ' || l.name)))
  FROM json_to_recordset(%(limits)s::json) AS l (kind text, name text);

-- name: jobs/limit_rooms
-- How many jobs may start now under each limit, and the seconds until its window ends if no more may start in it. Only
-- limited jobs are read, which the index jobs_running_limited has.
SELECT l.kind || ' ' || l.name,
       least(l.running::int8 - CASE WHEN l.running IS NULL THEN NULL
             WHEN l.kind = 'type' THEN (SELECT count(*) FROM compactory.jobs_live WHERE state = 'running' AND limited AND type = l.name)
             WHEN l.kind = 'group' THEN (SELECT count(*) FROM compactory.jobs_live
                                          WHERE state = 'running' AND limited AND "group" ^@ l.name)
             ELSE (SELECT count(*) FROM compactory.jobs_live
                    WHERE state = 'running' AND limited AND headers ->> %(header)s::text = l.name) END,
             l.rate_count::int8 - coalesce(r.starts, 0)) AS room,
       CASE WHEN r.starts >= l.rate_count
            THEN extract(epoch FROM r.begun_at - clock_timestamp())::float8 + l.rate_seconds END AS next_due
  FROM json_to_recordset(%(limits)s::json) AS l (kind text, name text, running int, rate_count int, rate_seconds int)
 CROSS JOIN (SELECT clock_timestamp() AS time) AS c
  LEFT JOIN compactory.job_rates AS r ON r.kind = l.kind AND r.name = l.name
        AND r.begun_at BETWEEN c.time - l.rate_seconds * interval '1 second' AND c.time;

-- name: jobs/count_starts
-- Count jobs that have started in the window of a limit, or begin the next window with them.
INSERT INTO compactory.job_rates AS r (kind, name, begun_at, starts) VALUES (%(kind)s, %(name)s, clock_timestamp(), %(starts)s)
ON CONFLICT (kind, name) DO UPDATE
   SET (begun_at, starts) = (SELECT CASE WHEN c.same THEN r.begun_at ELSE excluded.begun_at END,
                                    excluded.starts + CASE WHEN c.same THEN r.starts ELSE 0 END
                               FROM (SELECT r.begun_at BETWEEN clock_timestamp() - %(rate_seconds)s * interval '1 second'
                                                           AND clock_timestamp() AS same) AS c);

-- name: jobs/notify_slots
-- Wake executors that wait for the ends of jobs with limits.
SELECT pg_notify('compactory_jobs', payload) FROM unnest(%(payloads)s::text[]) AS payload;

-- name: jobs/notify_limits
-- Make executors read the limits again.
SELECT pg_notify('compactory_jobs', 'limits');

-- name: jobs/set_limit
-- Set a limit.
INSERT INTO compactory.job_limits (kind, name, running, rate_count, rate_seconds, by)
VALUES (%(kind)s, %(name)s, %(running)s, %(rate_count)s, %(rate_seconds)s, %(by)s)
ON CONFLICT (kind, name) DO UPDATE SET running = excluded.running, rate_count = excluded.rate_count,
                                       rate_seconds = excluded.rate_seconds, since = clock_timestamp(), by = excluded.by;

-- name: jobs/remove_limit
-- Remove the limit that an operator has set.
DELETE FROM compactory.job_limits WHERE kind = %(kind)s AND name = %(name)s;
