"""What all routes share: problems, authentication, freshness, OpenAPI."""
