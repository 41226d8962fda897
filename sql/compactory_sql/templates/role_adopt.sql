-- Adopting adds a column, triggers and an index, which only a table's owner may, and functions to schema compactory.
GRANT {member} TO {owner};
