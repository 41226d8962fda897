"""Apache Kafka for tests and benchmarks."""
