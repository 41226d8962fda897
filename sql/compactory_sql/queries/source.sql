-- name: source/server
-- The server behind a connection, and how far its WAL is safe. pg_walfile_name is the only source of the timeline that
-- is right at once after a promotion; it fails on a standby, which is refused before it is asked. Statistics begin anew
-- whenever the server recovers from a crash, its own or that of a backend, which the postmaster survives; a clean
-- shutdown keeps them. All of their times change then, and not all where somebody resets some.
SELECT pg_is_in_recovery() AS standby,
       CASE WHEN pg_is_in_recovery() THEN NULL
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int END AS timeline,
       (SELECT system_identifier::text FROM pg_control_system()) AS system_identifier,
       pg_postmaster_start_time()::text AS postmaster_start,
       (SELECT coalesce(string_agg(DISTINCT began::text, ','), '')
          FROM (SELECT stats_reset FROM pg_stat_bgwriter UNION ALL SELECT stats_reset FROM pg_stat_archiver
                UNION ALL SELECT stats_reset FROM pg_stat_slru) AS s (began)) AS statistics_start,
       current_database() AS database,
       (SELECT oid::int8 FROM pg_database WHERE datname = current_database()) AS database_oid;

-- name: source/begin
-- A poll's transaction in one round trip: its snapshot, WAL positions read after it, the oid of the table's name now.
-- The lock comes before the snapshot: a table that is rewritten or truncated between the two looks empty.
-- The insert position bounds every change this snapshot shows; the flush position tells which earlier one is durable.
-- Without statistics on updated_xid the planner would read the whole table for a handful of new rows.
BEGIN ISOLATION LEVEL {isolation} READ ONLY;
SET LOCAL enable_seqscan = {seqscan};
SET LOCAL cursor_tuple_fraction = {fraction};
LOCK TABLE {locked} IN ACCESS SHARE MODE;
EXECUTE {sight};

-- name: source/sight
-- The view of a poll, after the locks: its snapshot, WAL positions, the oid of the table's name now, shape, partitions.
PREPARE {sight} AS
{parts}
SELECT pg_current_snapshot()::text AS snapshot,
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint AS written,
       CASE WHEN EXISTS (SELECT FROM pg_class
                          WHERE relpersistence <> 'p' AND oid = ANY ((SELECT oids FROM parts)::oid[]))
            THEN 0 ELSE pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint END AS flushed,
       to_regclass({table})::oid::int8 AS oid,
       ({shape}) AS shape,
       ARRAY(SELECT oid::int8 FROM pg_class
              WHERE oid = ANY ((SELECT oids FROM parts)::oid[]) AND relkind <> 'p' AND (oid <> {oid} OR relispartition)
              ORDER BY 1) AS partitions;

-- name: source/parts
-- How a query begins that is about a table and what else holds rows of it: partitions, or children by INHERIT and theirs.
WITH parts AS MATERIALIZED (
    SELECT ARRAY(
        SELECT {oid}::oid
         UNION SELECT relid FROM pg_partition_tree({oid}::oid::regclass)
         UNION (WITH RECURSIVE child AS (
                    SELECT inhrelid FROM pg_inherits
                     WHERE inhparent = {oid} AND NOT EXISTS (SELECT FROM pg_partitioned_table WHERE partrelid = {oid})
                     UNION SELECT next.inhrelid FROM child JOIN pg_inherits AS next ON next.inhparent = child.inhrelid)
                SELECT inhrelid FROM child)) AS oids);

-- name: source/foreign_parts
-- Those of them that are foreign tables, whose rows have no versions that this server knows.
{parts}
SELECT oid::regclass::text FROM pg_class WHERE relkind = 'f' AND oid = ANY ((SELECT oids FROM parts)::oid[]) ORDER BY 1;

-- name: source/shape
-- The base of a session's plan of a table: columns and types, which triggers there are, the files of its rows, and the
-- attributes of composite types where a column has one (types of users have ids from 16384 on). A trigger that was off
-- for a while counts as well, for each ALTER TABLE makes a new version of its row. A rewrite (ALTER COLUMN … TYPE …
-- USING) may give every row other values, and no trigger stamps them; TRUNCATE makes a new file too. The
-- primary key has to stay the same while ranges of it are read. Asks ``parts``.
SELECT md5(concat((SELECT string_agg(concat_ws(' ', attname, atttypid, atttypmod, attnotnull), ',' ORDER BY attnum)
                     FROM pg_attribute WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped), ';',
                  (SELECT string_agg(concat_ws(' ', oid, xmin, tgenabled), ',' ORDER BY oid)
                     FROM pg_trigger
                    WHERE tgrelid = ANY ((SELECT oids FROM parts)::oid[])), ';',
                  (SELECT string_agg(relfilenode::text, ',' ORDER BY oid)
                     FROM pg_class
                    WHERE oid = ANY ((SELECT oids FROM parts)::oid[])), ';',
                  (SELECT concat_ws(' ', indexrelid, indkey) FROM pg_index WHERE indrelid = {oid} AND indisprimary),
                  (WITH RECURSIVE part AS (
                       SELECT atttypid AS oid FROM pg_attribute
                        WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped AND atttypid >= 16384
                        UNION
                       SELECT next.oid FROM part JOIN pg_type AS t ON t.oid = part.oid CROSS JOIN LATERAL (
                              SELECT t.typbasetype UNION ALL SELECT t.typelem UNION ALL
                              SELECT atttypid FROM pg_attribute
                               WHERE attrelid = t.typrelid AND attnum > 0 AND NOT attisdropped) AS next (oid)
                        WHERE next.oid >= 16384)
                   SELECT ';' || string_agg(concat_ws(' ', attrelid, attname, atttypid, atttypmod), ','
                                            ORDER BY attrelid, attnum)
                     FROM part JOIN pg_type AS t ON t.oid = part.oid AND t.typtype = 'c'
                     JOIN pg_attribute ON attrelid = t.typrelid AND attnum > 0 AND NOT attisdropped)));

-- name: source/shape_now
-- The same outside of a poll.
{parts}
{shape};

-- name: source/peek
-- The current snapshot alone: when it is the one of the last poll, nothing has been committed since.
SELECT pg_current_snapshot()::text AS snapshot;

-- name: source/glance
-- The current snapshot, whether this connection listens, and how full the server's queue of notifications is (0 to 1).
SELECT pg_current_snapshot()::text AS snapshot,
       EXISTS (SELECT FROM pg_listening_channels() AS channel WHERE channel = {channel}) AS listening,
       pg_notification_queue_usage() AS queue;

-- name: source/probe
-- Which of many tables may have changed since a snapshot, in one statement that is planned once: $1 its xmax, $2 what
-- ran then, $3 its floor in 32 bits, $4 the snapshot itself. The order leads to an index whatever the statistics say.
-- The catalogue's row versions tell of new columns, triggers, files and partitions, in sums that any change moves.
PREPARE {question} (xid8, xid8[], xid, text) AS
SELECT pg_current_snapshot()::text AS snapshot,
       EXISTS (SELECT FROM pg_listening_channels() AS channel WHERE channel = {channel}) AS listening,
       pg_notification_queue_usage() AS queue,
       CASE WHEN pg_current_snapshot()::text = $4 THEN ''
            ELSE concat_ws(' ',
                 (SELECT concat_ws(' ', count(*), sum(xmin::text::int8)) FROM pg_class WHERE oid = ANY ({tree})),
                 (SELECT concat_ws(' ', count(*), sum(xmin::text::int8)) FROM pg_attribute WHERE attrelid = ANY ({tree})),
                 (SELECT concat_ws(' ', count(*), sum(xmin::text::int8)) FROM pg_trigger WHERE tgrelid = ANY ({tree})),
                 (SELECT concat_ws(' ', count(*), sum(xmin::text::int8)) FROM pg_inherits WHERE inhparent = ANY ({tree})))
            END AS catalogue,
       CASE WHEN pg_current_snapshot()::text = $4 THEN '{{}}'
            ELSE array_remove(ARRAY[{tables}]::int8[], NULL) END AS suspects;

-- name: source/probe_stamped
-- One adopted table in the probe: the newest stamp, and those of transactions that ran.
CASE WHEN (SELECT t.updated_xid FROM {table} AS t ORDER BY t.updated_xid DESC LIMIT 1) >= $1
       OR (SELECT d.xid FROM compactory.deleted_rows AS d WHERE d."table" = {oid}::oid ORDER BY d.xid DESC LIMIT 1) >= $1
       OR EXISTS (SELECT FROM unnest($2) AS x WHERE x IN (
            (SELECT t.updated_xid FROM {table} AS t WHERE t.updated_xid <= x ORDER BY t.updated_xid DESC LIMIT 1),
            (SELECT d.xid FROM compactory.deleted_rows AS d
              WHERE d."table" = {oid}::oid AND d.xid <= x ORDER BY d.xid DESC LIMIT 1)))
     THEN {oid} END;

-- name: source/probe_versions
-- One table as it is in the probe: row versions at or above the snapshot's floor.
CASE WHEN EXISTS (SELECT FROM {table} AS t WHERE age(t.xmin) BETWEEN 0 AND age($3)) THEN {oid} END;

-- name: source/probe_tree
-- Tables with their partitions and children, of which the probe watches the catalogue.
WITH RECURSIVE part AS (
    SELECT unnest({oids}::int8[])::oid AS oid
     UNION SELECT inhrelid FROM part JOIN pg_inherits ON inhparent = part.oid)
SELECT oid::int8 FROM part;

-- name: source/rows
-- Rows to publish, new active ones before deactivated ones, so that a lookup never finds a gap between the two.
SELECT {columns}, {phase} AS "compactory phase", {places}, t.xmin::text
  FROM {table} AS t
 WHERE {unseen}
 ORDER BY "compactory phase", {order};

-- name: source/formatted
-- Living rows of a load, as records that the server writes itself.
SELECT {columns}, {places}
  FROM {table} AS t
 WHERE {living}
 ORDER BY {order};

-- name: source/expected
-- How many rows a load will bring, without putting them in order.
SELECT count(*) FROM {table} AS t WHERE {unseen};

-- name: source/left
-- Whether there is a row that an earlier page covers and a later one does not.
SELECT EXISTS (SELECT FROM {table} AS t WHERE {left});

-- name: source/pending
-- How many rows a query of a poll would bring.
SELECT count(*) FROM ({rows}) AS pending;

-- name: source/removals
-- How many of the rows that such a query would bring are deactivated or gone.
SELECT count(*) FROM ({rows}) AS pending WHERE "compactory phase" > 0;

-- name: source/survivors
-- Rows that live, counted as far as it matters.
SELECT count(*) FROM (SELECT FROM {relation} AS t WHERE {alive} LIMIT {limit}) AS living;

-- name: source/deleted
-- Hard-deleted rows from the log of an adopted table; phase 3 where a column that is asked for had another name then.
SELECT {columns}, CASE WHEN d."row" ?& {names}::text[] THEN 2 ELSE 3 END AS "compactory phase", {nulls}d.id::text, '0'
  FROM compactory.deleted_rows AS d
 WHERE d."table" = {oid}::oid AND {unseen}
 ORDER BY d.id;

-- name: source/logged_column
-- A column of a logged row. Each is read by itself: what became of the other columns since does not matter.
(SELECT t.{column} FROM jsonb_to_record(d."row") AS t ({column} {type}));

-- name: source/row_xids
-- Ids at or above the snapshot's floor of all row versions that are visible now.
SELECT DISTINCT t.xmin::text FROM {table} AS t WHERE age(t.xmin) BETWEEN 0 AND age({floor}::text::xid);

-- name: source/living
-- Rows that live in this snapshot under one of these keys, which must not be deleted; for their record keys only.
SELECT {columns} FROM unnest({arrays}) AS d ({names}) JOIN {table} AS t ON {matches} WHERE {alive};

-- name: source/keys
-- Every row whose key belongs in the topic; for their record keys only.
SELECT {columns} FROM {table} AS t WHERE {present};

-- name: source/key_rows
-- A range of a table in the order of its primary key; for the record keys only.
SELECT {columns}, {places} FROM {table} AS t WHERE {within} AND {present} ORDER BY {order} LIMIT {limit};

-- name: source/key_hash
-- Whether the keys of a range are still the same, whatever their order: their number and the sum of their hashes.
SELECT concat_ws(' ', count(*), sum(hashtextextended((ROW({keys})::text) COLLATE "C", 0))) AS fingerprint
  FROM {table} AS t WHERE {within} AND {present};

-- name: source/logged_tables
-- Tables of which deletions are logged; those of tables that are no more are nobody's.
SELECT c.oid::int8 AS oid, n.nspname || '.' || c.relname AS name
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE EXISTS (SELECT FROM compactory.deleted_rows AS d WHERE d."table" = c.oid)
 ORDER BY 2;

-- name: source/prunable
-- Logged deletions that every connector has behind it.
SELECT count(*) FROM compactory.deleted_rows AS d
 WHERE d."table" = {oid}::oid AND d.xid < {floor}::text::xid8 AND d.deleted_at < clock_timestamp() - {age}::interval;

-- name: source/prune
-- Remove some of them; how many.
WITH gone AS (
    DELETE FROM compactory.deleted_rows WHERE id IN (
        SELECT d.id FROM compactory.deleted_rows AS d
         WHERE d."table" = {oid}::oid AND d.xid < {floor}::text::xid8 AND d.deleted_at < clock_timestamp() - {age}::interval
         LIMIT {limit})
    RETURNING 1)
SELECT count(*) AS removed FROM gone;

-- name: source/running_ids
-- Of these ids those of transactions and savepoints that run now.
SELECT xid::text FROM unnest({xids}::text[]) AS xid WHERE pg_xact_status(xid::xid8) = 'in progress';

-- name: source/ended_ids
-- Of these ids those that do not run any more.
SELECT xid::text FROM unnest({xids}::text[]) AS xid WHERE pg_xact_status(xid::xid8) IS DISTINCT FROM 'in progress';

-- name: source/holders
-- The session that runs or has prepared a transaction, by the 32-bit id of that, or the oldest one that has an id; none
-- where none is open.
WITH wanted AS (
  SELECT coalesce(%(xid)s::text::xid, pg_snapshot_xmin(pg_current_snapshot())::xid) AS xid)
SELECT a.backend_xid::text::int8 AS xid, a.datname::text AS database, a.usename::text AS "user", a.pid,
       nullif(a.application_name, '') AS application, a.state, NULL AS gid,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS since,
       extract(epoch FROM clock_timestamp() - a.query_start)::float8 AS query_since
  FROM wanted JOIN pg_stat_activity AS a ON a.backend_xid = wanted.xid
UNION ALL
SELECT p.transaction::text::int8, p.database::text, p.owner::text, NULL, NULL, NULL, p.gid,
       extract(epoch FROM clock_timestamp() - p.prepared)::float8, NULL
  FROM wanted JOIN pg_prepared_xacts AS p ON p.transaction = wanted.xid;

-- name: source/lockers
-- Sessions that have locked a table or a partition of it against readers, or wait for such a lock before us.
SELECT format('pid %s (user %s, application %s, %s)%s', a.pid, a.usename,
              coalesce(nullif(a.application_name, ''), 'without a name'),
              coalesce(a.state || ', transaction open since ' || date_trunc('second', a.xact_start)::text,
                       'the rest is shown to members of pg_read_all_stats'),
              CASE WHEN bool_or(l.granted) THEN '' ELSE ', which waits for that lock itself' END) AS holder
  FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
 WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock' AND l.pid <> pg_backend_pid()
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND (l.relation = {oid}::oid OR l.relation IN
        (SELECT inhrelid FROM pg_inherits WHERE inhparent = {oid}::oid))
 GROUP BY a.pid, a.usename, a.application_name, a.state, a.xact_start
UNION ALL
SELECT DISTINCT format('prepared transaction %L of user %s, since %s', p.gid, p.owner, date_trunc('second', p.prepared))
  FROM pg_locks AS l
  JOIN pg_locks AS i ON i.virtualtransaction = l.virtualtransaction AND i.pid IS NULL AND i.locktype = 'transactionid'
  JOIN pg_prepared_xacts AS p ON p.transaction = i.transactionid AND p.database = current_database()
 WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock' AND l.pid IS NULL
   AND (l.relation = {oid}::oid OR l.relation IN
        (SELECT inhrelid FROM pg_inherits WHERE inhparent = {oid}::oid));

-- name: source/count
-- Rows for people: the planner's estimate where a table is large, counted where not.
SELECT coalesce((SELECT c.reltuples::int8 FROM pg_class AS c WHERE c.oid = {oid} AND c.reltuples > 100000),
                (SELECT count(*) FROM {table} AS t));

-- name: source/announce
-- A source of a connector runs: a lock that all of them share, for as long as the connection lasts.
SELECT pg_try_advisory_lock_shared({class}, {key}) AS announced;

-- name: source/running
-- Sessions of sources of a connector on this database.
SELECT format('pid %s of user %s%s, connected since %s', a.pid, a.usename, coalesce(' at ' || a.client_addr, ''),
              coalesce(date_trunc('second', a.backend_start)::text, '?')) AS holder
  FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
 WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND l.pid <> pg_backend_pid()
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.classid = {class}::int8::oid AND l.objid = {key}::int8::oid;

-- name: source/stamp_of
-- The timestamp of a row, by its id.
SELECT ({timestamp})::text FROM {relation} AS t WHERE {incrementing} = {number} LIMIT 1;

-- name: source/read
-- A transaction on one snapshot of what has no row versions, and the server's clock to the millisecond, as JDBC has it.
BEGIN ISOLATION LEVEL {isolation} READ ONLY;
SELECT floor(extract(epoch FROM transaction_timestamp()) * 1000)::int8 AS now_ms;

-- name: source/now_ms
-- The server's clock in milliseconds since 1970.
SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8 AS now_ms;

-- name: source/behind
-- Rows behind a place in the order of timestamp and id, as the real connector asks for them.
SELECT {columns}, {phase}, {places} FROM {relation} AS t WHERE {behind} ORDER BY {order} {suffix};

-- name: source/any_later
-- Whether a row's timestamp lies behind a moment.
SELECT EXISTS (SELECT FROM {relation} AS t WHERE {moment} > {now});

-- name: source/whole
-- Every row of something that has no row versions.
SELECT {columns}, {phase} FROM {relation} AS t {suffix};
