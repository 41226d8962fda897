
BEGIN
    NEW.updated_xid := pg_current_xact_id();
    IF TG_OP = 'UPDATE' OR NEW.{timestamp} IS NULL THEN
        NEW.{timestamp} := {clock};
    END IF;
    RETURN NEW;
END
