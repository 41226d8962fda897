-- Compactory creates its objects in a schema of its own. In a user's schemas it only adds columns, indexes and triggers to
-- adopted tables.
CREATE SCHEMA compactory;

-- The applied migrations. The checksum reveals a migration that was changed after it was applied.
CREATE TABLE compactory.migrations (
    version    integer     PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Deleted rows of adopted tables, with all columns: a connector's transforms may make the record key from any of them.
-- regclass, not oid, so that a dump contains the table's name.
CREATE TABLE compactory.deleted_rows (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    "table"    regclass    NOT NULL,
    "row"      jsonb       NOT NULL,
    xid        xid8        NOT NULL DEFAULT pg_current_xact_id(),
    deleted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- A poll reads the rows of one table from a transaction id on.
CREATE INDEX deleted_rows_table_xid_idx ON compactory.deleted_rows ("table", xid);

-- The lease of each connector: its holder publishes. The holder renews it every second. When it has expired, by this
-- server's clock, a standby takes it. A former holder that wakes up late is kept from publishing not by this row but by
-- Kafka: its successor has taken over the transactional id.
CREATE TABLE compactory.leases (
    connector  text        PRIMARY KEY,
    holder     uuid,                  -- of one process; NULL if nobody has the lease
    host       text        NOT NULL,
    pid        integer     NOT NULL,
    epoch      bigint      NOT NULL,  -- how often the holder has changed
    taken_at   timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL,
    sessions   uuid[]      NOT NULL DEFAULT '{}'  -- those that stored offsets name, and the last one
) WITH (fillfactor = 50);             -- leaves room to renew within the page

-- Heartbeats of connectors. A source renews its row at an interval and publishes it, so that readers of the topic know the
-- age of their data also while no table changes.
CREATE TABLE compactory.heartbeats (
    connector    text        PRIMARY KEY,
    beats        bigint      NOT NULL,
    committed_at timestamptz NOT NULL  -- of the statement, which is a transaction of its own
) WITH (fillfactor = 50);              -- leaves room to renew within the page

-- Finished loads. The row is written in the load's own transaction, so that a load that is started again with the same id
-- changes nothing if it had committed.
CREATE TABLE compactory.loads (
    "table"     regclass    NOT NULL,
    id          text        NOT NULL,  -- chosen by the caller
    changed     jsonb       NOT NULL,  -- numbers of keys by kind of change
    finished_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY ("table", id)
);

-- Staging tables of loads. The next load drops those of killed loads.
CREATE SCHEMA compactory_staging;

-- The table that a connector polls: the root of a partition tree, else the table itself.
CREATE FUNCTION compactory.root_of(relation oid) RETURNS regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT coalesce(pg_partition_root(relation), relation::regclass) $$;

-- BEFORE UPDATE trigger. Its WHEN clause compares the binary images of the key columns: a key that is equal for Postgres
-- (citext, numeric 1.0 and 1.00) may be another key for Kafka, and the entry of the old key would stay for ever.
CREATE FUNCTION compactory.refuse_key_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    settings jsonb := TG_ARGV[0];
    immutable text[] := ARRAY(SELECT jsonb_array_elements_text(settings -> 'key')) || (settings ->> 'id');
    changed text;
BEGIN
    SELECT string_agg(name, ', ') INTO changed
      FROM (SELECT DISTINCT name FROM unnest(immutable) AS name ORDER BY name) AS names
     WHERE to_jsonb(OLD) -> name IS DISTINCT FROM to_jsonb(NEW) -> name;
    RAISE EXCEPTION '% cannot be changed', coalesce(changed, array_to_string(immutable, ', '))
        USING DETAIL = format('It is part of the record key of %s.', compactory.root_of(TG_RELID)),
              HINT = 'Make the row inactive and insert a new one.';
END
$$;

-- AFTER DELETE row trigger of a table without partitions: refuses active rows and logs the others. AFTER, because a BEFORE
-- trigger of the application may keep the row. The formats of values are fixed, whatever the deleting session has set: a
-- number with fewer digits would be another record key, and dates in another style could not be read.
CREATE FUNCTION compactory.log_delete() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET extra_float_digits = 1 SET IntervalStyle = postgres SET DateStyle = 'ISO, YMD' SET TimeZone = 'UTC'
SET bytea_output = hex SET lc_monetary = 'C'
AS $$
DECLARE
    settings jsonb := TG_ARGV[0];
    active text := settings ->> 'active';
    gone jsonb := to_jsonb(OLD);
BEGIN
    IF gone -> active <> 'false' THEN
        RAISE EXCEPTION
            'Active settings (% = true) can not be deleted. Make it inactive firstly (% = false)', active, active;
    END IF;
    INSERT INTO compactory.deleted_rows ("table", "row") VALUES (TG_RELID, gone);
    RETURN NULL;
END
$$;

-- AFTER DELETE statement trigger of a partitioned table and of its partitions: the same for the rows in the transition
-- table "gone". A row trigger would also fire for a row that an UPDATE moves to another partition, and could not tell it
-- from a deleted one.
CREATE FUNCTION compactory.log_deletes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET extra_float_digits = 1 SET IntervalStyle = postgres SET DateStyle = 'ISO, YMD' SET TimeZone = 'UTC'
SET bytea_output = hex SET lc_monetary = 'C'
AS $$
DECLARE
    settings jsonb := TG_ARGV[0];
    active text := settings ->> 'active';
BEGIN
    IF EXISTS (SELECT FROM gone WHERE to_jsonb(gone) -> active <> 'false') THEN
        RAISE EXCEPTION
            'Active settings (% = true) can not be deleted. Make it inactive firstly (% = false)', active, active;
    END IF;
    INSERT INTO compactory.deleted_rows ("table", "row") SELECT compactory.root_of(TG_RELID), to_jsonb(gone) FROM gone;
    RETURN NULL;
END
$$;

-- AFTER DELETE row trigger of a partitioned table. Postgres clones it to present and future partitions. It logs what no
-- statement trigger logs, because logical replication fires none or a partition has none yet. It may log a moved row too;
-- a source does not delete a key that a living row has.
CREATE FUNCTION compactory.log_row_delete() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET extra_float_digits = 1 SET IntervalStyle = postgres SET DateStyle = 'ISO, YMD' SET TimeZone = 'UTC'
SET bytea_output = hex SET lc_monetary = 'C'
AS $$
BEGIN
    IF current_setting('session_replication_role') = 'replica'
       OR EXISTS (SELECT FROM pg_partition_ancestors(TG_RELID) AS a (oid)
                   WHERE NOT EXISTS (SELECT FROM pg_trigger AS t
                                      WHERE t.tgrelid = a.oid AND t.tgname = 'zz_compactory_delete' AND t.tgenabled = 'A')) THEN
        INSERT INTO compactory.deleted_rows ("table", "row") VALUES (compactory.root_of(TG_RELID), to_jsonb(OLD));
    END IF;
    RETURN NULL;
END
$$;

-- BEFORE TRUNCATE trigger: refuses while there are active rows, and logs all others. TRUNCATE of a partitioned table also
-- fires the triggers of its leaves, which log their own rows. The root's trigger logs the rows of leaves without one.
CREATE FUNCTION compactory.log_truncate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET row_security = off
SET extra_float_digits = 1 SET IntervalStyle = postgres SET DateStyle = 'ISO, YMD' SET TimeZone = 'UTC'
SET bytea_output = hex SET lc_monetary = 'C'
AS $$
DECLARE
    settings jsonb := TG_ARGV[0];
    active text := settings ->> 'active';
    root regclass := compactory.root_of(TG_RELID);
    leaf regclass;
    refused boolean;
BEGIN
    -- An older snapshot would not show rows that were committed since, and TRUNCATE removes those as well.
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'TRUNCATE of % needs isolation level READ COMMITTED', root
            USING DETAIL = 'Every row is logged, and this transaction may not see them all.';
    END IF;
    FOR leaf IN
        SELECT c.oid FROM pg_class AS c
         WHERE c.oid = TG_RELID AND c.relkind = 'r'
            OR c.oid IN (SELECT relid FROM pg_partition_tree(TG_RELID) WHERE isleaf AND relid <> TG_RELID)
               AND NOT EXISTS (SELECT FROM pg_trigger AS t
                                WHERE t.tgrelid = c.oid AND t.tgname = TG_NAME AND t.tgenabled = 'A')
    LOOP
        IF active IS NOT NULL THEN
            EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s AS t WHERE t.%I IS NOT FALSE)', leaf, active) INTO refused;
            IF refused THEN
                RAISE EXCEPTION
                    'Active settings (% = true) can not be deleted. Make it inactive firstly (% = false)', active, active;
            END IF;
        END IF;
        EXECUTE format('INSERT INTO compactory.deleted_rows ("table", "row") SELECT $1, to_jsonb(t) FROM ONLY %s AS t', leaf)
          USING root;
    END LOOP;
    RETURN NULL;
END
$$;

-- AFTER statement trigger: wakes a sleeping source. A source holds the lock exclusively only while it sleeps, so a busy
-- system sends no NOTIFY (commits with NOTIFY queue on one lock of the whole cluster). The class of the lock is
-- compactory_sql.WAKEUP_LOCK_CLASS; its key has the bits of the root table's oid, which may not fit an integer.
CREATE FUNCTION compactory.wake_source() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    root oid := coalesce(pg_partition_root(TG_RELID), TG_RELID);
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(1129140311, root::int8::bit(32)::int4) THEN
        PERFORM pg_notify('compactory_source', root::text);
    END IF;
    RETURN NULL;
END
$$;
