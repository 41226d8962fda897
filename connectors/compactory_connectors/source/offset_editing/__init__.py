"""Operators read, import, export, change and prune stored offsets."""
