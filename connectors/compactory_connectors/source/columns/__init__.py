"""Columns of Postgres become Kafka Connect records, by the type mapping of the JDBC source connector."""
