"""The HTTP side: lookups, health and operations. Knows the store only through its public names."""
