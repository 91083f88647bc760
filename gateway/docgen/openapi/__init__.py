"""A description of the legacy interface, for clients' authors and their tools."""

from gateway.docgen.openapi.document import addresses, document

__all__ = ["addresses", "document"]
