"""Wiring, listening, shutdown and worker processes."""
