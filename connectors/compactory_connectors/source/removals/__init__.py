"""Removals: guard, sweep, approval."""
