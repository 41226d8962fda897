-- What is logged of a row must not depend on how the deleting session formats values: a range of dates in another style
-- can't be read, or is another range.
ALTER FUNCTION compactory.log_delete() SET DateStyle = 'ISO, YMD';
ALTER FUNCTION compactory.log_delete() SET TimeZone = 'UTC';
ALTER FUNCTION compactory.log_delete() SET bytea_output = hex;
ALTER FUNCTION compactory.log_delete() SET lc_monetary = 'C';
ALTER FUNCTION compactory.log_deletes() SET DateStyle = 'ISO, YMD';
ALTER FUNCTION compactory.log_deletes() SET TimeZone = 'UTC';
ALTER FUNCTION compactory.log_deletes() SET bytea_output = hex;
ALTER FUNCTION compactory.log_deletes() SET lc_monetary = 'C';
ALTER FUNCTION compactory.log_truncate() SET DateStyle = 'ISO, YMD';
ALTER FUNCTION compactory.log_truncate() SET TimeZone = 'UTC';
ALTER FUNCTION compactory.log_truncate() SET bytea_output = hex;
ALTER FUNCTION compactory.log_truncate() SET lc_monetary = 'C';
