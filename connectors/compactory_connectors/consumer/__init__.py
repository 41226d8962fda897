"""Membership in a consumer group, and the thread that works for it: what sinks and processors have in common."""
