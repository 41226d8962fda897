"""What operators see of a source, and what they order it to do."""
