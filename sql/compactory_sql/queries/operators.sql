-- name: operators/log_act
-- Write a line of the operator log.
SELECT compactory.log_act(%(part)s, %(action)s, %(object)s::jsonb, %(count)s, %(by)s);

-- name: operators/log
-- The newest lines of the operator log, of one part or of all.
SELECT at, who, part, action, object, count FROM compactory.operator_log
 WHERE %(part)s::text IS NULL OR part = %(part)s ORDER BY id DESC LIMIT %(limit)s;

-- name: operators/pause
-- Pause a name and notify running processes. A row if it was not paused.
WITH added AS (INSERT INTO compactory.paused (part, name, by) VALUES (%(part)s, %(name)s, %(by)s)
               ON CONFLICT DO NOTHING RETURNING part)
SELECT pg_notify('compactory_paused', part) FROM added;

-- name: operators/resume
-- Resume a name and notify running processes. A row if it was paused.
WITH gone AS (DELETE FROM compactory.paused WHERE part = %(part)s AND name = %(name)s RETURNING part)
SELECT pg_notify('compactory_paused', part) FROM gone;

-- name: operators/paused
-- What is paused in these parts.
SELECT part, name, since, by FROM compactory.paused WHERE part = ANY (%(parts)s) ORDER BY part, name;
