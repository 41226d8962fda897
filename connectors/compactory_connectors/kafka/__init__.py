"""Kafka for every part: the publisher, a reader of whole topics, the partitioner, membership of a consumer group."""
