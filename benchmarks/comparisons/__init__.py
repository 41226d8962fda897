"""What is measured beside what; each module gives its comparisons by name."""
