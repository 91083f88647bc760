"""Generated documents: OpenAPI, reference pages, request explanations."""
