"""Commands of operators: preview, overview, pause without a process, edits and import of offsets, pruning."""
