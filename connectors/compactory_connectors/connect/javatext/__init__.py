"""How Java spells numbers, dates and patterns."""
