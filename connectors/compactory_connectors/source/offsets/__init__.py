"""Operators read, import, export, change and prune what is stored of positions."""
