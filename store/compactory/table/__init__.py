"""A record and the present state become changes."""
