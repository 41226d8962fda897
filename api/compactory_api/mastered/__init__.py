"""Routes that write directories mastered in Kafka, here or at the server that owns the directory."""
