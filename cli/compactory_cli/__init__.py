"""The command line: the composition root that wires store, connectors and HTTP together."""
