-- The number of rows that lack a value that the source needs, by column.
SELECT json_build_object({counts}) AS nulls FROM {table};
