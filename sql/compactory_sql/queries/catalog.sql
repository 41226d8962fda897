-- name: catalog/relations
-- All relations that a source can poll: tables, partitioned and foreign tables, views.
SELECT c.oid::int8, n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind,
       c.relispartition AS partition
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname !~ '^pg_'
   AND n.nspname NOT IN ('information_schema', 'compactory')
 ORDER BY 2, 3;

-- name: catalog/table
-- The columns of the primary key, in its order, and the indexes on plain columns with the condition of their rows
-- (NULL: all rows). An index of a table does not cover its inheritance children, so several rows may share a
-- unique value there.
WITH index AS (
    SELECT i.indisprimary AND NOT parent AS indisprimary, i.indisunique AND NOT parent AS indisunique,
           (SELECT array_agg(a.attname::text ORDER BY k.place)
              FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
              JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
             WHERE k.place <= i.indnkeyatts) AS columns,
           pg_get_expr(i.indpred, i.indrelid) AS predicate
      FROM pg_index i,
           LATERAL (SELECT EXISTS (SELECT FROM pg_inherits WHERE inhparent = i.indrelid)
                           AND NOT EXISTS (SELECT FROM pg_partitioned_table WHERE partrelid = i.indrelid)) AS p (parent)
     WHERE i.indrelid = %(oid)s AND i.indisvalid AND i.indexprs IS NULL
)
SELECT coalesce((SELECT columns FROM index WHERE indisprimary), '{}'),
       coalesce((SELECT jsonb_agg(jsonb_build_array(columns, indisunique, predicate)) FROM index), '[]')
  FROM pg_class c
 WHERE c.oid = %(oid)s;

-- name: catalog/columns
-- The columns of a table in order. A domain appears as its base type and typmod, as in a row description.
WITH RECURSIVE base AS (
    SELECT a.attnum, a.attname, a.attnotnull AS not_null, a.atttypid AS type, a.atttypmod AS typmod,
           format_type(a.atttypid, a.atttypmod) AS declared,
           a.attidentity <> '' OR coalesce(pg_get_expr(v.adbin, v.adrelid) LIKE 'nextval(%%', false) AS numbers_itself
      FROM pg_attribute a
      LEFT JOIN pg_attrdef v ON v.adrelid = a.attrelid AND v.adnum = a.attnum AND a.attgenerated = ''
     WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
     UNION ALL
    SELECT b.attnum, b.attname, b.not_null OR d.typnotnull, d.typbasetype,
           CASE WHEN d.typtypmod >= 0 THEN d.typtypmod ELSE b.typmod END, b.declared, b.numbers_itself
      FROM base b
      JOIN pg_type d ON d.oid = b.type
     WHERE d.typtype = 'd'
)
SELECT b.attname::text AS name, t.typname::text AS type, n.nspname::text AS type_schema, t.typtype::text AS type_kind,
       b.typmod, b.not_null, b.declared, b.numbers_itself,
       t.typcategory IN ('A', 'C') OR t.typname = 'hstore' AS has_parts
  FROM base b
  JOIN pg_type t ON t.oid = b.type
  JOIN pg_namespace n ON n.oid = t.typnamespace
 WHERE t.typtype <> 'd'
 ORDER BY b.attnum;

-- name: catalog/result_column
-- The type of a column of a query's result, with the base type of a domain. "not_null" is true where the column of
-- a table, or its domain, is declared NOT NULL.
SELECT t.typname::text AS type, n.nspname::text AS type_schema, t.typtype::text AS type_kind,
       t.typcategory IN ('A', 'C') OR t.typname = 'hstore' AS has_parts,
       format_type(t.oid, %(typmod)s) AS declared,
       coalesce((SELECT a.attnotnull OR (d.typtype = 'd' AND d.typnotnull)
                   FROM pg_attribute a
                   JOIN pg_type d ON d.oid = a.atttypid
                  WHERE a.attrelid = %(table)s::int8::oid AND a.attnum = %(number)s), false) AS not_null
  FROM pg_type t
  JOIN pg_namespace n ON n.oid = t.typnamespace
 WHERE t.oid = %(type)s::int8::oid;
