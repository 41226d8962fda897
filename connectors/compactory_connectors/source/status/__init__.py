"""Status and metrics of a running source, and the orders that it takes."""
