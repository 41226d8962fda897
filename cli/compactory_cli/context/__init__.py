"""What all commands share: configuration, flags, logging, failures."""
