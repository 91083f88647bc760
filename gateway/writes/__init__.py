"""Executes flows: records each write, sends it once, and reconciles it without a response."""
