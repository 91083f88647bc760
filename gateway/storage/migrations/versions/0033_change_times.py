"""Stores when a recipient was changed by the clock of the service, with which it shows the change."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    op.add_column("upstream_writes", sa.Column("changed_at", sa.DateTime(timezone=True)))
