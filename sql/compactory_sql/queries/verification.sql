-- name: verification/rows
-- Rows to compare with the topic. The number after a row's columns is a sum: 1 the stored offset does not cover
-- it, 2 it does not belong in the topic, 4 a first load may leave it out.
SELECT {columns}, CASE WHEN ({due}) IS TRUE THEN 1 ELSE 0 END + CASE WHEN ({present}) IS TRUE THEN 0 ELSE 2 END
                  + CASE WHEN ({optional}) IS TRUE THEN 4 ELSE 0 END
  FROM {relation} AS t
 WHERE (({present}) IS TRUE OR ({due}) IS TRUE) AND {chosen} {suffix};

-- name: verification/deleted
-- Deleted rows of an adopted table that no poll has read yet.
SELECT {columns}, {flags}
  FROM compactory.deleted_rows AS d
 WHERE d."table" = {oid}::oid AND d."row" ?& {names}::text[] AND {unseen};
