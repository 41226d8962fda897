-- Loading a table: rows are staged beside it, compared with it, and merged in one transaction. {target} is the table,
-- {staged} the rows of the load, {changes} those of them that differ; t and s are their aliases in every condition.

-- name: load/table
-- A table as a load needs it. Catalogue look-ups by oid, because a name in a schema without USAGE is refused
-- before it is found.
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS sql, quote_ident(current_user) AS role,
       quote_ident(n.nspname) AS schema, c.relkind::text AS kind,
       has_schema_privilege(n.oid, 'USAGE') AS uses_schema,
       has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
           AND has_table_privilege(c.oid, 'UPDATE') AS writes,
       row_security_active(c.oid) AS sees_some_rows,
       to_regnamespace('compactory_staging') IS NOT NULL AS installed,
       coalesce(has_schema_privilege(to_regnamespace('compactory_staging')::oid, 'CREATE')
                AND has_schema_privilege(to_regnamespace('compactory')::oid, 'USAGE')
                AND (SELECT has_table_privilege(l.oid, 'SELECT') AND has_table_privilege(l.oid, 'INSERT')
                            AND has_table_privilege(l.oid, 'DELETE')
                       FROM pg_class AS l
                      WHERE l.relnamespace = to_regnamespace('compactory') AND l.relname = 'loads'), false) AS stages
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.oid = %(oid)s;

-- name: load/namesakes
-- The tables of the same name, in all schemas that this role may use.
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS sql
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relname = (SELECT t.relname FROM pg_class AS t WHERE t.oid = %(oid)s)
   AND c.relkind IN ('r', 'p') AND n.nspname !~ '^(pg_|information_schema$|compactory)'
   AND has_schema_privilege(n.oid, 'USAGE')
 ORDER BY 1;

-- name: load/columns
-- The columns of a table, with the base type of a domain. "exact" is true if equal values always have the same
-- bytes.
WITH RECURSIVE base AS (
    SELECT a.attnum AS number, a.atttypid AS type, a.atttypmod AS typmod, false AS not_null
      FROM pg_attribute AS a WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.number, d.typbasetype, d.typtypmod, b.not_null OR d.typnotnull
      FROM base AS b JOIN pg_type AS d ON d.oid = b.type AND d.typtype = 'd'
)
SELECT a.attname AS name, format_type(b.type, b.typmod) AS type,
       a.attnotnull OR b.not_null AS not_null,
       a.atthasdef OR a.attidentity <> '' AS has_default,
       a.attgenerated <> '' OR a.attidentity = 'a' AS made_by_server, a.attidentity <> '' AS identity,
       b.type IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'bool'::regtype, 'date'::regtype, 'uuid'::regtype,
                  'timestamp'::regtype, 'timestamptz'::regtype, 'bytea'::regtype)
           OR b.type = 'numeric'::regtype AND b.typmod <> -1
           OR b.type IN ('text'::regtype, 'varchar'::regtype, 'bpchar'::regtype)
              AND (SELECT l.collisdeterministic FROM pg_collation AS l WHERE l.oid = a.attcollation) AS exact
  FROM pg_attribute AS a
  JOIN base AS b ON b.number = a.attnum
  JOIN pg_type AS t ON t.oid = b.type AND t.typtype <> 'd'
 WHERE a.attrelid = %(oid)s
 ORDER BY a.attnum;

-- name: load/lock
-- Try to lock loads of a table.
SELECT pg_try_advisory_lock(%(lock_class)s, %(oid)s::int8::bit(32)::int4) AS locked;

-- name: load/unlock
-- Release that lock.
SELECT pg_advisory_unlock(%(lock_class)s, %(oid)s::int8::bit(32)::int4);

-- name: load/lock_holder
-- The session that loads the table now.
SELECT 'pid ' || l.pid || coalesce(' (user ' || a.usename || ', from ' || coalesce(host(a.client_addr), 'this host')
           || ', connected ' || date_trunc('second', a.backend_start)::text || ')', '') AS holder
  FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.classid = %(lock_class)s AND l.objid = %(oid)s AND l.objsubid = 2 AND l.granted
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- name: load/leftovers
-- Staging tables that this role may drop: those of killed loads of table %(oid)s, whose lock the caller holds, those of
-- dropped tables, and those of DataFrames that are older than a day. Tasks of a DataFrame fill theirs without a lock.
SELECT c.relname AS name
  FROM pg_class AS c
 WHERE c.relnamespace = to_regnamespace('compactory_staging') AND c.relkind = 'r'
   AND c.relname ~ '^(load_[0-9]+|write_[0-9]+_[0-9]+)_' AND pg_has_role(c.relowner, 'USAGE')
   AND (starts_with(c.relname, 'load_') AND split_part(c.relname, '_', 2)::int8 = %(oid)s
        OR starts_with(c.relname, 'write_') AND split_part(c.relname, '_', 3)::int8 < extract(epoch FROM now()) - 86400
        OR NOT EXISTS (SELECT FROM pg_class AS t WHERE t.oid::int8 = split_part(c.relname, '_', 2)::int8));

-- name: load/stage
-- Create a staging table, unless another task has. Unlogged, because nothing in it has to survive a crash.
SELECT pg_advisory_xact_lock(hashtextextended({staged_name}, 0));
CREATE UNLOGGED TABLE IF NOT EXISTS {staged} WITH (autovacuum_enabled = false) AS SELECT {columns} FROM {target} WITH NO DATA;

-- name: load/seal
-- Stop writes to the staging table, also those of late tasks. Waits for running writes.
ALTER TABLE {staged} ADD CONSTRAINT sealed CHECK (false) NOT VALID;

-- name: load/disconnect
-- End the sessions of tasks that use a staging table.
SELECT pg_terminate_backend(l.pid) FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
 WHERE l.locktype = 'relation' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND c.relnamespace = to_regnamespace('compactory_staging') AND c.relname = %(name)s AND l.pid <> pg_backend_pid();

-- name: load/staged
-- The number of rows that each transaction has staged. A task that ran several times has several transactions.
SELECT xmin::text::int8 AS xid, count(*) AS rows FROM {staged} GROUP BY xmin;

-- name: load/forget
-- Delete the rows of tasks that do not count.
DELETE FROM {staged} WHERE xmin::text::int8 = ANY(%(xids)s);

-- name: load/same_key
-- A key that is one to Postgres but was several to the load, such as differently written numbers.
SELECT {keys} FROM {staged} AS t GROUP BY {keys} HAVING count(*) > 1 LIMIT 1;

-- name: load/several
-- A key of several active rows.
SELECT {keys} FROM {target} AS t WHERE {active} GROUP BY {keys} HAVING count(*) > 1 LIMIT 1;

-- name: load/present
-- The number of active rows in the table.
SELECT count(*) FROM {target} AS t WHERE {active};

-- name: load/empty
-- Whether the table has no row at all, active or not.
SELECT NOT EXISTS (SELECT FROM {target}) AS empty;

-- name: load/wanted
-- The number of active rows in the load.
SELECT count(*) FROM {staged} AS s WHERE {wanted};

-- name: load/compare
-- The rows of the load that the table lacks ('i') or has with other values ('u').
CREATE UNLOGGED TABLE {changes} WITH (autovacuum_enabled = false) AS
SELECT s.*, (CASE WHEN t.tableoid IS NULL THEN 'i' ELSE 'u' END)::"char" AS compactory_change
  FROM {staged} AS s LEFT JOIN {target} AS t ON {match} AND {active}
 WHERE {wanted} AND (t.tableoid IS NULL OR {differs});

-- name: load/switched_off
-- The keys that the load has as inactive.
INSERT INTO {changes} ({key}, compactory_change)
SELECT {keys}, 'd' FROM {target} AS t WHERE {active} AND EXISTS (SELECT FROM {staged} AS s WHERE {match} AND NOT {wanted});

-- name: load/missing
-- The keys that the load lacks.
INSERT INTO {changes} ({key}, compactory_change)
SELECT {keys}, 'd' FROM {target} AS t
 WHERE {active} AND NOT EXISTS (SELECT FROM {staged} AS s WHERE {match}){unspared};

-- name: load/unspared
-- Without keys whose rows the load rejected.
 AND NOT EXISTS (SELECT FROM {spared} AS s WHERE {match});

-- name: load/counts
-- The number of changes of each kind.
SELECT compactory_change::text AS change, count(*) AS rows FROM {changes} GROUP BY 1;

-- name: load/sample
-- Some changed rows, before and after the load.
SELECT (SELECT json_object({names}, ARRAY[{old_row}]) FROM {target} AS t WHERE {match} AND {active} LIMIT 1) AS before,
       {new_row} AS after
  FROM {changes} AS s WHERE {chosen} LIMIT {limit};

-- name: load/equal
-- Some unchanged rows.
SELECT json_object({names}, ARRAY[{old_row}]) AS before, json_object({names}, ARRAY[{old_row}]) AS after
  FROM {staged} AS s JOIN {target} AS t ON {match} AND {active} AND NOT {differs} WHERE {wanted} LIMIT {limit};

-- name: load/finished
-- The changes that an earlier load with this id has made.
SELECT changed FROM compactory.loads WHERE "table" = %(oid)s::oid AND id = %(id)s;

-- name: load/begin
-- How long to wait for locks of other sessions.
SELECT set_config('lock_timeout', %(lock_timeout)s, true);

-- name: load/alone
-- Lock the table against other writers, where no unique index prevents a second row with the same key.
LOCK TABLE {target} IN SHARE ROW EXCLUSIVE MODE;

-- name: load/reactivate
-- Keys that come back: the newest of their inactive rows becomes active.
UPDATE {target} AS t SET {assignments}
  FROM (SELECT DISTINCT ON ({keys}) t.tableoid AS "table", t.ctid AS place, {taken}
          FROM {target} AS t JOIN {changes} AS s ON {match}
         WHERE s.compactory_change = 'i' AND t.{flag} IS FALSE
         ORDER BY {keys}, t.{newest} DESC) AS s
 WHERE t.tableoid = s."table" AND t.ctid = s.place AND t.{flag} IS FALSE
   AND NOT EXISTS (SELECT FROM {target} AS t WHERE {match} AND {active});

-- name: load/insert
-- Insert the keys that the table lacks.
INSERT INTO {target} ({columns}) SELECT {values} FROM {changes} AS s WHERE {inserts}{absent}{sorted};

-- name: load/absent
-- Needed if the table may have rows.
 AND NOT EXISTS (SELECT FROM {target} AS t WHERE {match} AND {active});

-- name: load/sorted
-- Needed if there is an index on the key: inserting in its order takes half the time.
 ORDER BY {locked};

-- name: load/update
-- Update rows that differ; where others insert meanwhile, also rows that were absent at the comparison.
UPDATE {target} AS t SET {assignments} FROM {changes} AS s WHERE {updates} AND {match} AND {active} AND {differs};

-- name: load/deactivate
-- Deactivate the keys that are gone.
UPDATE {target} AS t SET {flag} = false FROM {changes} AS s
 WHERE s.compactory_change = 'd' AND {match} AND {active};

-- name: load/settle
-- Check deferred constraints now, while the error can still be reported with its cause.
SET CONSTRAINTS ALL IMMEDIATE;

-- name: load/record
-- Note this load as finished.
INSERT INTO compactory.loads ("table", id, changed) VALUES (%(oid)s::oid, %(id)s, %(changed)s);

-- name: load/forget_id
-- Forget a load that nobody repeats: one without a name, or the micro-batch before the last one of a stream.
DELETE FROM compactory.loads WHERE "table" = %(oid)s::oid AND id = %(id)s;

-- name: load/constraint
-- The expression of a check constraint.
SELECT pg_get_expr(c.conbin, c.conrelid) AS expression
  FROM pg_constraint AS c WHERE c.contype = 'c' AND c.conrelid = %(oid)s::oid AND c.conname = %(name)s;

-- name: load/breaking
-- A row of the load that violates a constraint of the table.
SELECT {texts} FROM {changes} AS s WHERE {broken} LIMIT 1;

-- name: load/referenced_values
-- The values that a column of the load may refer to: those of one column of another table, where {condition} is
-- true.
SELECT DISTINCT {column}::text FROM {target} WHERE {condition} AND {column} IS NOT NULL;
