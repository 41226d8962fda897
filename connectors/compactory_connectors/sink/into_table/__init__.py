"""``compactory sink run``: a topic's records become rows of tables, as a Kafka Connect JDBC sink connector says it."""
