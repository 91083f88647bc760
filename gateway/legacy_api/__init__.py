"""The legacy interface: routing, translation of requests and responses, deprecation headers."""
