"""What all routes share: connections, limits, access, problems, freshness, OpenAPI."""
