-- Keys that more than one row has, five at most. An index finds them too, but only after it was built for nothing.
SELECT jsonb_build_array({columns})::text AS key, count(*) AS rows
  FROM {table}
 WHERE {condition}
 GROUP BY {columns}
HAVING count(*) > 1
 ORDER BY count(*) DESC, 1
 LIMIT 5;
