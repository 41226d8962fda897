"""A record and the present state become changed entries, indexes and bad records."""
