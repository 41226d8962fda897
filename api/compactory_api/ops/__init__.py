"""For operators: health, metrics, orders, and the listener of workers."""
