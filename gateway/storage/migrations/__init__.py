"""Alembic scripts, run by ``gateway.storage.migrate``."""
