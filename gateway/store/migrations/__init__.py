"""alembic's scripts; ``gateway.store.migrate`` runs them."""
