"""Parts that all routes share: problems, authentication, freshness, OpenAPI."""
