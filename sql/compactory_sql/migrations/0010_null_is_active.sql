-- NULL in the soft-delete column means active, as a source and a store take it: only a row with FALSE may be deleted.
CREATE OR REPLACE FUNCTION compactory.log_delete() RETURNS trigger
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

CREATE OR REPLACE FUNCTION compactory.log_deletes() RETURNS trigger
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

CREATE OR REPLACE FUNCTION compactory.log_truncate() RETURNS trigger
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
