"""The connector's JSON becomes a frozen configuration, or a list of all its problems."""
