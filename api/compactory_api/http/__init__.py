"""The parts that all routes share: connections, limits, access, problems, freshness, OpenAPI."""
