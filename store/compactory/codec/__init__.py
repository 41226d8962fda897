"""Bytes become values, keys and index terms; values become bytes."""
