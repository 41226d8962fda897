"""Offsets: the value, the topic that stores them, the state that an operator wants."""
