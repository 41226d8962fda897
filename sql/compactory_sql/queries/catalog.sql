-- name: catalog/table
-- A table by its name as a regclass, and the columns of its primary key in the key's order.
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text,
       coalesce((SELECT array_agg(a.attname::text ORDER BY k.place)
                   FROM pg_index i
                   CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
                   JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
                  WHERE i.indrelid = c.oid AND i.indisprimary), '{}')
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = to_regclass(%(table)s);

-- name: catalog/columns
-- The columns of a table in order. A domain shows as its base type and typmod, as it does in a row description.
WITH RECURSIVE base AS (
    SELECT a.attnum, a.attname, a.attnotnull AS not_null, a.atttypid AS type, a.atttypmod AS typmod,
           format_type(a.atttypid, a.atttypmod) AS declared
      FROM pg_attribute a
     WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
     UNION ALL
    SELECT b.attnum, b.attname, b.not_null OR d.typnotnull, d.typbasetype,
           CASE WHEN d.typtypmod >= 0 THEN d.typtypmod ELSE b.typmod END, b.declared
      FROM base b
      JOIN pg_type d ON d.oid = b.type
     WHERE d.typtype = 'd'
)
SELECT b.attname::text, t.typname::text, n.nspname::text, t.typtype::text, b.typmod, b.not_null, b.declared
  FROM base b
  JOIN pg_type t ON t.oid = b.type
  JOIN pg_namespace n ON n.oid = t.typnamespace
 WHERE t.typtype <> 'd'
 ORDER BY b.attnum;

-- name: catalog/names
-- Every table that somebody may have meant, with its schema where the search path does not find it.
SELECT CASE WHEN pg_table_is_visible(c.oid) THEN c.relname::text ELSE n.nspname || '.' || c.relname END
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'compactory')
 ORDER BY 1;
