"""Java's text of numbers, dates and patterns, and its calendar and time zones."""
