"""Generated documents: OpenAPI, reference pages, migration guide, request explanations."""
