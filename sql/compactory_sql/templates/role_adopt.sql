-- Adopting adds a column, triggers and an index, which only a table's owner may.
GRANT {table_owner} TO {owner};
