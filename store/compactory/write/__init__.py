"""Values are written to a topic, and waited for."""
