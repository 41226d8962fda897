"""The status of a source as operators see it, and their orders."""
