"""Columns become Kafka Connect records; transforms change them; converters make bytes of them."""
