"""Which process may publish for a connector."""
