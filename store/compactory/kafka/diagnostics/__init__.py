"""What is asked by Kafka's own protocol, after a failure and off the usual path: why it failed, and who blocks."""
