"""Configuration as Kafka Connect has it: files, placeholders, and keys that connectors and sinks share."""
