"""A topic to files, and what was exported known again."""
