"""Directories whose master is Kafka: writes that are checked, and that only one process at a time may make."""
