"""Logs, the access log, metrics and traces."""
