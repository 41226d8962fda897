"""The development stack: a Postgres and a Kafka-protocol broker started from packages, for the demo and the tests."""
