"""Kafka Connect's data model in Python: settings, Java's text forms, records, transforms, converters, configuration."""
