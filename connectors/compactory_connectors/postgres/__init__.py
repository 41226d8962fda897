"""What all parts share of Postgres: connections, errors, wake-ups."""
