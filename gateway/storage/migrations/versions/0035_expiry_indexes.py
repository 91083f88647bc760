"""Gives the indexes by which expired responses are found conditions of their own, see tables.py."""

from alembic import op

revision = "0035"
down_revision = "0034"


def upgrade() -> None:
    op.execute("DROP INDEX IF EXISTS ix_operations_named")
    op.execute("DROP INDEX IF EXISTS ix_operations_answer_ages")
