-- name: source/server
-- The identity of the server, and the time its statistics began. Only pg_walfile_name gives the right timeline at
-- once after a promotion; it fails on a standby. Statistics begin anew after every crash of the server or a
-- backend (which the postmaster survives), but not after a clean shutdown. Then all of their times change, while a
-- manual reset changes some.
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
-- Begin a poll's transaction in one round trip: snapshot, then WAL positions, then the oid that the table's name
-- has now. The lock comes before the snapshot: a table that is rewritten or truncated between the two looks empty.
-- The insert position is at least that of every visible change; the flush position says which earlier changes are
-- durable. Without statistics on updated_xid the planner would read the whole table for a few new rows.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL enable_seqscan = {seqscan};
SET LOCAL cursor_tuple_fraction = {fraction};
LOCK TABLE {locked} IN ACCESS SHARE MODE;
EXECUTE {prepared};

-- name: source/prepare_poll
-- Prepare the statement that begins a poll, after the locks: snapshot, WAL positions, oid of the table's name,
-- shape, partitions.
PREPARE {prepared} AS
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
-- The beginning of a query about a table and all that stores rows of it: partitions, or children by INHERITS.
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
-- Foreign tables among them, whose rows have no versions that this server knows.
{parts}
SELECT oid::regclass::text FROM pg_class WHERE relkind = 'f' AND oid = ANY ((SELECT oids FROM parts)::oid[]) ORDER BY 1;

-- name: source/shape
-- A digest of all that a session's plan of a table depends on: columns, types, triggers, files of the rows,
-- primary key, and attributes of composite types (types of users have oids from 16384 on). A trigger that was
-- disabled for a while counts too, because every ALTER TABLE writes a new version of its row. A rewrite (ALTER
-- COLUMN … TYPE … USING) may change all values without firing triggers; TRUNCATE makes a new file too. Needs
-- ``parts``.
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
-- The shape, outside of a poll.
{parts}
{shape};

-- name: source/snapshot
-- The current snapshot. If it equals that of the last poll, nothing was committed since.
SELECT pg_current_snapshot()::text AS snapshot;

-- name: source/snapshot_and_queue
-- The current snapshot, and how full the server's queue of notifications is (0 to 1).
SELECT pg_current_snapshot()::text AS snapshot, pg_notification_queue_usage() AS queue;

-- name: source/probe
-- Which of many tables may have changed since a snapshot, in one prepared statement. $1: its xmax; $2:
-- transactions that ran; $3: its xmin in 32 bits; $4: the snapshot itself. ORDER BY makes the planner use an index
-- whatever the statistics say. The xmin of catalogue rows reveals new columns, triggers, files and partitions, in
-- sums that any change alters.
PREPARE {question} (xid8, xid8[], xid, text) AS
SELECT pg_current_snapshot()::text AS snapshot,
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
-- One adopted table in the probe: the newest stamp, and stamps of transactions that ran.
CASE WHEN (SELECT t.updated_xid FROM {table} AS t ORDER BY t.updated_xid DESC LIMIT 1) >= $1
       OR (SELECT d.xid FROM compactory.deleted_rows AS d WHERE d."table" = {oid}::oid ORDER BY d.xid DESC LIMIT 1) >= $1
       OR EXISTS (SELECT FROM unnest($2) AS x WHERE x IN (
            (SELECT t.updated_xid FROM {table} AS t WHERE t.updated_xid <= x ORDER BY t.updated_xid DESC LIMIT 1),
            (SELECT d.xid FROM compactory.deleted_rows AS d
              WHERE d."table" = {oid}::oid AND d.xid <= x ORDER BY d.xid DESC LIMIT 1)))
     THEN {oid} END;

-- name: source/probe_versions
-- One table without adoption in the probe: row versions at or above the snapshot's xmin.
CASE WHEN EXISTS (SELECT FROM {table} AS t WHERE age(t.xmin) BETWEEN 0 AND age($3)) THEN {oid} END;

-- name: source/probe_tree
-- Tables with their partitions and children, whose catalogue rows the probe compares.
WITH RECURSIVE part AS (
    SELECT unnest({oids}::int8[])::oid AS oid
     UNION SELECT inhrelid FROM part JOIN pg_inherits ON inhparent = part.oid)
SELECT oid::int8 FROM part;

-- name: source/rows
-- Rows to publish. New active rows come before deactivated ones, so that a lookup finds no gap between the two.
SELECT {columns}, {phase} AS "compactory phase", {places}, t.xmin::text
  FROM {table} AS t
 WHERE {unseen}
 ORDER BY "compactory phase", {order};

-- name: source/formatted
-- Living rows of a first load, as records that the server renders itself.
SELECT {columns}, {places}
  FROM {table} AS t
 WHERE {living}
 ORDER BY {order};

-- name: source/count_rows
-- The number of rows that a load will read, unordered.
SELECT count(*) FROM {table} AS t WHERE {unseen};

-- name: source/uncovered_rows
-- Whether there is a row that an earlier page covers and a later page does not.
SELECT EXISTS (SELECT FROM {table} AS t WHERE {left});

-- name: source/pending
-- The number of rows that a query of a poll would return.
SELECT count(*) FROM ({rows}) AS pending;

-- name: source/count_removals
-- The number of deactivated or deleted rows that such a query would return.
SELECT count(*) FROM ({rows}) AS pending WHERE "compactory phase" > 0;

-- name: source/count_living
-- The number of living rows, counted up to a limit.
SELECT count(*) FROM (SELECT FROM {relation} AS t WHERE {alive} LIMIT {limit}) AS living;

-- name: source/deleted
-- Deleted rows from the log of an adopted table. Phase 3 if a requested column had another name then.
SELECT {columns}, CASE WHEN d."row" ?& {names}::text[] THEN 2 ELSE 3 END AS "compactory phase", {nulls}d.id::text, '0'
  FROM compactory.deleted_rows AS d
 WHERE d."table" = {oid}::oid AND {unseen}
 ORDER BY d.id;

-- name: source/logged_column
-- One column of a logged row. It is read alone, so that changes of other columns do not matter.
(SELECT {value} FROM jsonb_to_record(d."row") AS t ({column} {type}));

-- name: source/row_xids
-- Transaction ids at or above the snapshot's xmin, of all visible row versions.
SELECT DISTINCT t.xmin::text FROM {table} AS t WHERE age(t.xmin) BETWEEN 0 AND age({floor}::text::xid);

-- name: source/rows_with_keys
-- Living rows with these keys, which must not be deleted from the topic; only their record keys are used.
SELECT {columns} FROM unnest({arrays}) AS d ({names}) JOIN {table} AS t ON {matches} WHERE {alive};

-- name: source/keys
-- All rows whose keys belong in the topic; only their record keys are used.
SELECT {columns} FROM {table} AS t WHERE {present};

-- name: source/key_rows
-- A range of a table in order of its primary key; only the record keys are used.
SELECT {columns}, {places} FROM {table} AS t WHERE {within} AND {present} ORDER BY {order} LIMIT {limit};

-- name: source/key_hash
-- The number of keys in a range and the sum of their hashes, in any order: equal if the keys are the same.
SELECT concat_ws(' ', count(*), sum(hashtextextended((ROW({keys})::text) COLLATE "C", 0))) AS fingerprint
  FROM {table} AS t WHERE {within} AND {present};

-- name: source/logged_tables
-- Tables with logged deletions, without dropped tables.
SELECT c.oid::int8 AS oid, n.nspname || '.' || c.relname AS name
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE EXISTS (SELECT FROM compactory.deleted_rows AS d WHERE d."table" = c.oid)
 ORDER BY 2;

-- name: source/prunable
-- The number of logged deletions that all connectors have read.
SELECT count(*) FROM compactory.deleted_rows AS d
 WHERE d."table" = {oid}::oid AND d.xid < {floor}::text::xid8 AND d.deleted_at < clock_timestamp() - {age}::interval;

-- name: source/prune
-- Delete some of them; return how many.
WITH gone AS (
    DELETE FROM compactory.deleted_rows WHERE id IN (
        SELECT d.id FROM compactory.deleted_rows AS d
         WHERE d."table" = {oid}::oid AND d.xid < {floor}::text::xid8 AND d.deleted_at < clock_timestamp() - {age}::interval
         LIMIT {limit})
    RETURNING 1)
SELECT count(*) AS removed FROM gone;

-- name: source/running_ids
-- Ids of this list that belong to running transactions and savepoints.
SELECT xid::text FROM unnest({xids}::text[]) AS xid WHERE pg_xact_status(xid::xid8) = 'in progress';

-- name: source/ended_ids
-- Ids of this list whose transactions have ended.
SELECT xid::text FROM unnest({xids}::text[]) AS xid WHERE pg_xact_status(xid::xid8) IS DISTINCT FROM 'in progress';

-- name: source/open_transactions
-- The session that runs or has prepared a transaction: by its 32-bit id, or the oldest one. No row if none is
-- open. Times are seconds since 1970 by the caller's clock.
WITH wanted AS (
  SELECT coalesce(%(xid)s::text::xid, pg_snapshot_xmin(pg_current_snapshot())::xid) AS xid)
SELECT a.backend_xid::text::int8 AS xid, a.datname::text AS database, a.usename::text AS "user", a.pid,
       nullif(a.application_name, '') AS application, a.state, NULL AS gid,
       %(clock)s::float8 - extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS since,
       %(clock)s::float8 - extract(epoch FROM clock_timestamp() - a.query_start)::float8 AS query_since
  FROM wanted JOIN pg_stat_activity AS a ON a.backend_xid = wanted.xid
UNION ALL
SELECT p.transaction::text::int8, p.database::text, p.owner::text, NULL, NULL, NULL, p.gid,
       %(clock)s::float8 - extract(epoch FROM clock_timestamp() - p.prepared)::float8, NULL
  FROM wanted JOIN pg_prepared_xacts AS p ON p.transaction = wanted.xid;

-- name: source/lock_holders
-- Sessions that have locked a table or a partition against readers, or wait for such a lock.
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
-- The number of rows, for people: an estimate for a large table, else counted.
SELECT coalesce((SELECT c.reltuples::int8 FROM pg_class AS c WHERE c.oid = {oid} AND c.reltuples > 100000),
                (SELECT count(*) FROM {table} AS t));

-- name: source/lock_running
-- Announce a running source of a connector by a shared lock, which lasts as long as the connection.
SELECT pg_try_advisory_lock_shared({class}, {key}) AS announced;

-- name: source/running_sessions
-- Sessions of other running sources of a connector in this database.
SELECT format('pid %s of user %s%s, connected since %s', a.pid, a.usename, coalesce(' at ' || a.client_addr, ''),
              coalesce(date_trunc('second', a.backend_start)::text, '?')) AS holder
  FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
 WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND l.pid <> pg_backend_pid()
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.classid = {class}::int8::oid AND l.objid = {key}::int8::oid;

-- name: source/read
-- Begin a transaction on one snapshot, for a view without row versions, and return the server's clock in
-- milliseconds, as JDBC has it.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT floor(extract(epoch FROM transaction_timestamp()) * 1000)::int8 AS now_ms;

-- name: source/now_ms
-- The server's clock in milliseconds since 1970.
SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8 AS now_ms;

-- name: source/rows_after
-- Rows after an offset, in the order of timestamp and id, as the real connector reads them.
SELECT {columns}, {phase}, {places} FROM {relation} AS t WHERE {behind} ORDER BY {order} {suffix};

-- name: source/any_later
-- True if a row's timestamp is later than {clock}.
SELECT EXISTS (SELECT FROM {relation} AS t WHERE {timestamp} > {clock});

-- name: source/whole
-- All rows of a view without row versions.
SELECT {columns}, {phase} FROM {relation} AS t {suffix};
