"""A description of the legacy interface, for clients' authors and their tools."""

from gateway.docgen.openapi.document import build_openapi_document, list_public_urls

__all__ = ["build_openapi_document", "list_public_urls"]
