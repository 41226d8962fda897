"""Everything that is asked of Kafka: the client, its settings and its errors."""
