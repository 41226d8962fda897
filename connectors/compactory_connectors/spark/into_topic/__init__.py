"""A load into a topic: records as the source would make them, those that differ in one transaction."""
