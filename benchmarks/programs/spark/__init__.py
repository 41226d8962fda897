"""Programs that run Spark."""
