"""Records of Kafka Connect: schemas, and where a row has its values."""
