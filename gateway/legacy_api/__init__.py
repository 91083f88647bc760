"""The legacy interface: routing, request and response translation, deprecation headers."""
