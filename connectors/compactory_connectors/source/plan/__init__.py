"""The catalogue and the configuration become the plan of a table."""
