"""Drops the progress of large requests, which workers ask each other for."""

from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.drop_column("instances", "large")
