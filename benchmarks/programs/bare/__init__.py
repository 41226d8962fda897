"""Bare loops: what the programs beside them are measured against, in as few lines as it takes."""
