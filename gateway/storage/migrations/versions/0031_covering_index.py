"""Lets SQLite compare a request with open operations without reading the rows of the others."""

from alembic import op

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    op.execute("DROP INDEX IF EXISTS ix_operations_open")
