"""Spark: directories as DataFrames; loads, exports and comparisons as jobs."""

from .registration import register

__all__ = ["register"]
