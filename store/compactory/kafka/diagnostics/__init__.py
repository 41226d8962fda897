"""Questions in Kafka's own protocol, asked only after a failure: why it failed, and which transaction blocks."""
