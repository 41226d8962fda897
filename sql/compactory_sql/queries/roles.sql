-- name: roles/names
-- The database and the roles, quoted where needed, and the owner of schema compactory, if it exists.
SELECT quote_ident(current_database()) AS database,
       quote_ident(%(owner)s) AS owner, quote_ident(%(source)s) AS source, quote_ident(%(writer)s) AS writer,
       quote_ident(r.rolname) AS schema_owner, coalesce(r.rolsuper, false) AS schema_of_superuser
  FROM (SELECT) AS one
  LEFT JOIN (pg_namespace AS n JOIN pg_roles AS r ON r.oid = n.nspowner) ON n.nspname = 'compactory';

-- name: roles/table
-- A table as grants name it. The sequence of a serial column needs a grant of its own, that of an identity column
-- does not.
SELECT quote_ident(n.nspname) AS schema, quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name,
       quote_ident(r.rolname) AS owner, r.rolsuper AS owned_by_superuser,
       ARRAY(SELECT quote_ident(m.nspname) || '.' || quote_ident(s.relname)
               FROM pg_depend AS d
               JOIN pg_class AS s ON s.oid = d.objid AND s.relkind = 'S'
               JOIN pg_namespace AS m ON m.oid = s.relnamespace
              WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
                AND d.refobjid = c.oid AND d.deptype = 'a'
              ORDER BY 1) AS sequences
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
  JOIN pg_roles AS r ON r.oid = c.relowner
 WHERE c.oid = %(oid)s;

-- name: roles/source
-- Rights of a source that the session lacks on a table and, if it is adopted, on the log of deleted rows.
-- Catalogue look-ups by oid, because a name in a schema without USAGE is refused before it is found.
SELECT quote_ident(current_user) AS role, quote_ident(n.nspname) AS schema,
       quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS "table",
       has_schema_privilege(c.relnamespace, 'USAGE') AS uses_schema,
       has_table_privilege(c.oid, 'SELECT') AS reads_table, row_security_active(c.oid) AS sees_some_rows,
       current_setting('row_security') = 'on' AS leaves_out,
       coalesce((SELECT has_schema_privilege(l.relnamespace, 'USAGE') AND has_table_privilege(l.oid, 'SELECT')
                   FROM pg_class AS l JOIN pg_namespace AS m ON m.oid = l.relnamespace
                  WHERE m.nspname = 'compactory' AND l.relname = 'deleted_rows'), false) AS reads_log
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.oid = %(oid)s;
