"""Benchmarks: ``python -m benchmarks [NAME…]`` (or ``make bench``). See README.md in this folder."""
