"""Connections to Postgres, and the questions that a source asks it."""
