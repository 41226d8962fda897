"""Plans of tables, with their warnings: the columns, the order in which rows are read, the topic."""
