"""Documents that are generated: OpenAPI, the reference, the migration guide, explanations."""
