"""What all parts share of Kafka: publisher, topic reader, partitioner, consumer group."""
