-- Says which transaction wrote a row version and when. It is the last of the BEFORE triggers, so that nothing changes
-- the stamps after it. Savepoints do not matter: pg_current_xact_id() is the top-level transaction's.
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS {body};

-- Triggers fire without this right; nobody needs it.
REVOKE ALL ON FUNCTION {function}() FROM PUBLIC;
