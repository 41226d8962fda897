"""Routes, a module for each noun."""
