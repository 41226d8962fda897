-- What is logged of a row must not depend on how the deleting session formats values: a number with fewer digits, or an
-- interval in another style, is another record key, and the row's entry would stay in the topic for ever.
ALTER FUNCTION compactory.log_delete() SET extra_float_digits = 1;
ALTER FUNCTION compactory.log_delete() SET IntervalStyle = postgres;
ALTER FUNCTION compactory.log_deletes() SET extra_float_digits = 1;
ALTER FUNCTION compactory.log_deletes() SET IntervalStyle = postgres;
ALTER FUNCTION compactory.log_truncate() SET extra_float_digits = 1;
ALTER FUNCTION compactory.log_truncate() SET IntervalStyle = postgres;
