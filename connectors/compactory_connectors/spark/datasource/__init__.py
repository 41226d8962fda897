"""Spark's data source ``compactory``: directories and topics as DataFrames, read in batches and as streams."""
