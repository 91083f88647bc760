"""Reads of the service: list queries, recipient caches, and recently read answers."""
