"""Writes docs/reference from the code itself: ``make docs``, or ``python -m docs.generate``.

Each module has one function ``page() -> str``. Nothing here talks to Kafka or Postgres.
"""
