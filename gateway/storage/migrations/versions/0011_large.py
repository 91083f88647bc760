"""What large requests each instance has under way, beside its beats: consoles show those of all."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # With a default: a process of the version before says nothing of it.
    op.add_column(
        "instances", sa.Column("large", sa.Text, nullable=False, server_default=sa.text("''"))
    )
