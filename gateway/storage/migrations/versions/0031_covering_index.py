"""Lets SQLite compare a request with open operations without reading the rows of the others."""

from __future__ import annotations

from alembic import op

revision = "0031"
down_revision = "0030"

IS_OPEN = "state <> 'answered' AND state <> 'undone'"


def upgrade() -> None:
    op.execute("DROP INDEX ix_operations_open")
    op.execute(
        "CREATE INDEX ix_operations_open ON operations"
        f" (merchant, environment, fingerprint, state, id) WHERE {IS_OPEN}"
    )
