"""What operators do by command: preview, overview, edits and import of offsets."""
