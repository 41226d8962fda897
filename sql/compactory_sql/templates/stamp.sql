-- Stamps a row version with its transaction and time. The last BEFORE trigger, so that no other changes the stamps.
-- Within a savepoint, pg_current_xact_id() is the id of the top-level transaction.
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS {body};

-- Triggers need no right to fire.
REVOKE ALL ON FUNCTION {function}() FROM PUBLIC;
