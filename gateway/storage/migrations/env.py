"""alembic calls this for each command; the connection and its transaction are the caller's."""

from __future__ import annotations

from alembic import context

from gateway.storage.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite alters a table by making another
)
with context.begin_transaction():
    context.run_migrations()
