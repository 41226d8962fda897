-- name: verification/rows
-- Rows to compare with the topic: whether they are deactivated, belong in it, are not covered by the stored offset, and
-- may be left out by a first load.
SELECT {columns}, {phase}, ({present}) IS TRUE, ({due}) IS TRUE, ({optional}) IS TRUE
  FROM {relation} AS t
 WHERE (({present}) IS TRUE OR ({due}) IS TRUE) AND {chosen} {suffix};
