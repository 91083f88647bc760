"""Generates an OpenAPI description of the legacy interface."""

from gateway.docgen.openapi.document import build_openapi_document, list_public_urls

__all__ = ["build_openapi_document", "list_public_urls"]
