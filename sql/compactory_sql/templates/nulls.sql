-- How many rows lack a value where the source needs one.
SELECT json_build_object({counts}) AS nulls FROM {table};
