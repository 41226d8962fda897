-- name: shape/columns
-- The declared types of a table's columns, with the number of array dimensions.
SELECT a.attname::text, a.atttypid::int8, a.atttypmod, a.attndims::int4
  FROM pg_attribute a
 WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped;

-- name: shape/types
-- These types and all types that they consist of: base types of domains, elements of arrays, attributes of
-- composites.
WITH RECURSIVE part AS (
    SELECT unnest(%(types)s::int8[])::oid AS oid
     UNION
    SELECT next.oid
      FROM part p
      JOIN pg_type t ON t.oid = p.oid
     CROSS JOIN LATERAL (
           SELECT t.typbasetype AS oid
            UNION ALL
           SELECT e.oid FROM pg_type e WHERE e.typarray = t.oid
            UNION ALL
           SELECT a.atttypid FROM pg_attribute a
            WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) AS next
     WHERE next.oid <> 0
)
SELECT t.oid::int8, t.typname::text, n.nspname::text, t.typtype::text, t.typbasetype::int8, t.typtypmod, t.typndims,
       (SELECT e.oid::int8 FROM pg_type e WHERE e.typarray = t.oid),
       (SELECT jsonb_agg(jsonb_build_array(a.attname, a.atttypid::int8, a.atttypmod, a.attndims) ORDER BY a.attnum)
          FROM pg_attribute a
         WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped)
  FROM part p
  JOIN pg_type t ON t.oid = p.oid
  JOIN pg_namespace n ON n.oid = t.typnamespace;
