-- Adopting adds a column, triggers and indexes to a table, and functions to schema compactory: only their owners may.
GRANT {member} TO {owner};
