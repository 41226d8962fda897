"""The parts that all commands share: configuration, flags, logging, failures."""
