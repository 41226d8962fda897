-- A role that may log in; how it proves itself (password, certificate, peer) is the administrator's business.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {literal}) THEN
        CREATE ROLE {role} LOGIN;
    END IF;
END
$$;

GRANT CONNECT ON DATABASE {database} TO {role};
