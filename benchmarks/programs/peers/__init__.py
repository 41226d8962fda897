"""Programs of the peers that are compared with."""
