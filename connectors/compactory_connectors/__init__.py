"""Everything that touches Postgres or Spark: the source, migrations and adoption of tables."""
