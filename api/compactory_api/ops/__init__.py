"""Health, metrics and orders for operators, and the listener of workers."""
