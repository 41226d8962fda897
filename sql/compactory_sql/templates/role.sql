-- A role that may log in. The administrator decides how (password, certificate, peer).
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {literal}) THEN
        CREATE ROLE {role} LOGIN;
    END IF;
END
$$;

GRANT CONNECT ON DATABASE {database} TO {role};
