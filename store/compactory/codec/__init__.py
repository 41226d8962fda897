"""Conversion between bytes and values, lookup keys, index terms and origins. Pure functions."""
