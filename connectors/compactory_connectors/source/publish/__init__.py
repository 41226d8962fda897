"""A batch and its offset become one Kafka transaction."""
