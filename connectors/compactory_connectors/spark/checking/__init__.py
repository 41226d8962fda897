"""What is wrong with rows, and what becomes of those with which something is."""
