-- Facts of the catalogue about a server and its tables, for migrations, adoption and inspection. Every statement
-- works without any right on schema compactory.

-- name: database/server
-- Whether the server is a standby, its version, and the pid of the backend. Behind a pooler it is not the pid that
-- the driver received at its start.
SELECT pg_is_in_recovery() AS standby,
       current_setting('server_version_num')::int AS version,
       pg_backend_pid() AS pid;

-- name: database/install_lock
-- Wait until no other session installs. The lock ends with the transaction.
SELECT pg_advisory_xact_lock(%(lock_class)s, 0);

-- name: database/installed
-- NULL before the first migration is applied.
SELECT c.oid::int8 AS oid FROM pg_class AS c
 WHERE c.relname = 'migrations' AND c.relnamespace = to_regnamespace('compactory');

-- name: database/migrations
-- The applied migrations, with their time.
SELECT version, name, checksum, applied_at FROM compactory.migrations ORDER BY version;

-- name: adoption/resolve
-- The oid of a table by its name, with a schema or by the search path.
SELECT to_regclass(coalesce(quote_ident(%(schema)s) || '.', '') || quote_ident(%(name)s))::oid::int8 AS oid;

-- name: adoption/names
-- Names of tables, to suggest one for a misspelt name.
SELECT c.relname AS name, c.oid::regclass::text AS spelled
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'compactory')
 ORDER BY 1
 LIMIT 10000;

-- name: adoption/relation
-- Kind and persistence of a relation. For a partition also its root, which is the table to adopt. "inherits" means
-- inheritance without partitions.
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS sql, n.nspname AS schema,
       c.relkind::text AS kind, c.relpersistence::text AS persistence,
       CASE WHEN c.relispartition THEN pg_partition_root(c.oid)::text END AS root,
       EXISTS (SELECT FROM pg_inherits AS i
                WHERE i.inhrelid = c.oid AND NOT c.relispartition OR i.inhparent = c.oid AND c.relkind <> 'p')
           AS inherits
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.oid = %(oid)s;

-- name: adoption/rights
-- Rights of the adopting role: to alter the table, to create functions in schema compactory, and to use them. When
-- the table is truncated, the owner of the schema reads it. Before the schema exists, this role will be its owner.
SELECT quote_ident(current_user) AS role,
       pg_has_role(c.relowner, 'USAGE') AS owns_table, c.relowner::regrole::text AS table_owner,
       (SELECT rolsuper FROM pg_roles WHERE oid = c.relowner) AS table_of_superuser,
       coalesce(pg_has_role(n.nspowner, 'USAGE'), true) AS owns_schema, n.nspowner::regrole::text AS schema_owner,
       (SELECT rolsuper FROM pg_roles WHERE oid = n.nspowner) AS schema_of_superuser,
       coalesce(has_table_privilege(n.nspowner, c.oid, 'SELECT')
                AND has_schema_privilege(n.nspowner, c.relnamespace, 'USAGE'), true) AS schema_owner_reads
  FROM pg_class AS c LEFT JOIN pg_namespace AS n ON n.nspname = 'compactory'
 WHERE c.oid = %(oid)s;

-- name: adoption/columns
-- The columns of a table, with the base type of a domain. "ordered" is true if a btree index can have values (or
-- array elements) of the type. Enums, ranges and composites have an order of their own; varchar uses that of text.
SELECT a.attname AS name, quote_ident(a.attname) AS sql,
       format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL) AS type,
       a.attnotnull OR t.typnotnull AS not_null, a.attgenerated <> '' AS generated,
       e.typtype IN ('e', 'r', 'm', 'c') OR EXISTS (
           SELECT FROM pg_opclass AS o JOIN pg_am AS m ON m.oid = o.opcmethod AND m.amname = 'btree'
            WHERE o.opcdefault AND (o.opcintype = e.oid OR EXISTS (
                  SELECT FROM pg_cast AS c
                   WHERE c.castsource = e.oid AND c.casttarget = o.opcintype AND c.castmethod = 'b' AND c.castcontext = 'i')))
           AS ordered,
       pg_get_expr(d.adbin, d.adrelid) AS "default"
  FROM pg_attribute AS a
  JOIN pg_type AS t ON t.oid = a.atttypid
  JOIN pg_type AS b ON b.oid = coalesce(nullif(t.typbasetype, 0), t.oid)
  JOIN pg_type AS e ON e.oid = CASE b.typcategory WHEN 'A' THEN b.typelem ELSE b.oid END
  LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum;

-- name: adoption/members
-- The table and all its partitions, parents first. pg_partition_tree returns no row for other kinds of relations.
SELECT c.oid::int8 AS oid, c.relname AS name, quote_ident(n.nspname) AS schema_sql,
       quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS sql, c.relkind::text AS kind,
       m.parent::int8 AS parent,
       ARRAY(SELECT (SELECT a.attname::text FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum = k.number)
               FROM pg_partitioned_table AS p, unnest(p.partattrs::int2[]) WITH ORDINALITY AS k (number, place)
              WHERE p.partrelid = c.oid ORDER BY k.place) AS partition_columns
  FROM (SELECT relid::oid AS oid, CASE WHEN level > 0 THEN parentrelid::oid END AS parent, level
          FROM pg_partition_tree(%(oid)s::oid::regclass)
        UNION
        SELECT %(oid)s::oid, NULL, 0) AS m
  JOIN pg_class AS c ON c.oid = m.oid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 ORDER BY m.level, n.nspname, c.relname;

-- name: adoption/triggers
-- Triggers whose names begin as Compactory's do. Their argument is stored with a zero byte at its end. Server
-- versions spell conditions differently, so the columns of a condition come from pg_depend. Up to PostgreSQL 14
-- the triggers of partitions are internal.
SELECT t.tgrelid::int8 AS "table", t.tgname AS name, t.tgtype::int AS kind,
       CASE WHEN n.nspname = 'compactory' THEN p.proname ELSE quote_ident(n.nspname) || '.' || quote_ident(p.proname) END
           AS function,
       CASE WHEN t.tgnargs = 1
            THEN convert_from(substring(t.tgargs FROM 1 FOR length(t.tgargs) - 1), getdatabaseencoding()) END AS settings,
       t.tgenabled::text AS enabled, t.tgparentid <> 0 AS cloned,
       ARRAY(SELECT a.attname::text
               FROM pg_depend AS d JOIN pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
              WHERE d.classid = 'pg_trigger'::regclass AND d.objid = t.oid
                AND d.refclassid = 'pg_class'::regclass AND d.refobjsubid > 0) AS reads
  FROM pg_trigger AS t
  JOIN pg_proc AS p ON p.oid = t.tgfoid
  JOIN pg_namespace AS n ON n.oid = p.pronamespace
 WHERE t.tgrelid = ANY(%(oids)s::oid[]) AND starts_with(t.tgname, %(prefix)s) AND (NOT t.tgisinternal OR t.tgparentid <> 0)
 ORDER BY 1, 2;

-- name: adoption/later_triggers
-- BEFORE row triggers of others for INSERT or UPDATE whose names sort after Compactory's, so that they fire later.
-- Bits of tgtype: 1 row, 2 before, 4 insert, 16 update.
SELECT 'trigger ' || quote_ident(t.tgname) || ' on ' || t.tgrelid::regclass AS name
  FROM pg_trigger AS t
 WHERE t.tgrelid = ANY(%(oids)s::oid[]) AND NOT t.tgisinternal AND t.tgparentid = 0 AND t.tgenabled <> 'D'
   AND t.tgtype & 3 = 3 AND t.tgtype & 20 <> 0
   AND t.tgname COLLATE "C" > %(prefix)s AND NOT starts_with(t.tgname, %(prefix)s)
 ORDER BY 1;

-- name: adoption/indexes
-- The btree indexes, with their key columns (NULL for an expression) and the condition of their rows.
SELECT i.indrelid::int8 AS "table", i.indexrelid::int8 AS oid, c.relname AS name,
       quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS sql,
       ARRAY(SELECT (SELECT a.attname::text FROM pg_attribute AS a WHERE a.attrelid = i.indrelid AND a.attnum = k.number)
               FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
              WHERE k.place <= i.indnkeyatts ORDER BY k.place) AS columns,
       i.indisunique AND i.indimmediate AS "unique", i.indisvalid AND i.indisready AS valid,
       pg_get_expr(i.indpred, i.indrelid) AS predicate,
       h.inhparent::int8 AS parent
  FROM pg_index AS i
  JOIN pg_class AS c ON c.oid = i.indexrelid
  JOIN pg_am AS m ON m.oid = c.relam AND m.amname = 'btree'
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
  LEFT JOIN pg_inherits AS h ON h.inhrelid = i.indexrelid
 WHERE i.indrelid = ANY(%(oids)s::oid[]) AND i.indislive
 ORDER BY 1, 3;

-- name: adoption/functions
-- The bodies of the functions in schema compactory.
SELECT p.proname AS name, p.prosrc AS body FROM pg_proc AS p WHERE p.pronamespace = to_regnamespace('compactory');

-- name: adoption/foreign_xids
-- Whether a row has a transaction id that this server has not assigned yet. Answered from the index. Ids of this
-- transaction are ignored.
SELECT EXISTS (SELECT FROM {table} WHERE updated_xid >= pg_snapshot_xmax(pg_current_snapshot())
                  AND updated_xid IS DISTINCT FROM pg_current_xact_id_if_assigned()) AS found;

-- name: adoption/tables
-- Tables with triggers of Compactory; for a partition its root.
SELECT DISTINCT coalesce(pg_partition_root(t.tgrelid), t.tgrelid)::oid::int8 AS oid
  FROM pg_trigger AS t
 WHERE starts_with(t.tgname, %(prefix)s) AND NOT t.tgisinternal
 ORDER BY 1;

-- name: adoption/lock
-- Try to lock the adoption of a table. It does not wait: a waiting statement has a snapshot, for which CREATE
-- INDEX CONCURRENTLY would wait in turn.
SELECT pg_try_advisory_lock(%(lock_class)s, %(oid)s::int8::bit(32)::int4) AS locked;

-- name: adoption/unlock
-- Release that lock.
SELECT pg_advisory_unlock(%(lock_class)s, %(oid)s::int8::bit(32)::int4);

-- name: adoption/lock_holder
-- The backend that adopts the table now.
SELECT pid FROM pg_locks
 WHERE locktype = 'advisory' AND classid = %(lock_class)s AND objid = %(oid)s AND objsubid = 2 AND granted
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- name: adoption/blockers
-- Sessions and prepared transactions that have locks on these tables, longest transaction first.
SELECT 'pid ' || l.pid || ' (user ' || coalesce(a.usename, '?') || ', application '
           || coalesce(quote_literal(nullif(a.application_name, '')), 'unnamed') || ', ' || coalesce(a.state, '?')
           || ', transaction open for ' || coalesce(date_trunc('second', clock_timestamp() - a.xact_start)::text, '?')
           || ')' AS blocker
  FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.relation = ANY(%(oids)s::oid[]) AND l.granted AND l.pid <> pg_backend_pid()
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
 GROUP BY l.pid, a.usename, a.application_name, a.state, a.xact_start
UNION ALL
SELECT DISTINCT 'prepared transaction ' || quote_literal(x.gid) || ' of user ' || x.owner
  FROM pg_locks AS l
  JOIN pg_locks AS i ON i.virtualtransaction = l.virtualtransaction AND i.pid IS NULL AND i.locktype = 'transactionid'
  JOIN pg_prepared_xacts AS x ON x.transaction = i.transactionid
 WHERE l.locktype = 'relation' AND l.relation = ANY(%(oids)s::oid[]) AND l.granted AND l.pid IS NULL;

-- name: adoption/timeouts
-- The session's time-outs, so that the caller can restore them.
SELECT current_setting('statement_timeout') AS statement_timeout, current_setting('lock_timeout') AS lock_timeout;

-- name: adoption/set_timeouts
-- Set the time-outs. The build of an index has none: it waits for open transactions, but blocks no other
-- statement.
SELECT set_config('statement_timeout', %(statement_timeout)s, false), set_config('lock_timeout', %(lock_timeout)s, false);
