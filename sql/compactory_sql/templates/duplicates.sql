-- Keys of several rows, five at most. Checked before the build, which would fail only at its end.
SELECT jsonb_build_array({columns})::text AS key, count(*) AS rows
  FROM {table}
 WHERE {condition}
 GROUP BY {columns}
HAVING count(*) > 1
 ORDER BY count(*) DESC, 1
 LIMIT 5;
