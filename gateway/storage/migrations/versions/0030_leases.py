"""Replaces the counters of instances by the times at which they renew their leases."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Every instance registers itself when it starts.
    op.drop_table("instances")
    op.create_table(
        "instances",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("renewed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_instances"),
    )
