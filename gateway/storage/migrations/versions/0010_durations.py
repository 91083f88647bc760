"""Histograms of request durations in the traffic table."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

BUCKETS = 25


def upgrade() -> None:
    # A default, because a process of the previous version may still insert rows.
    for part in ("gateway", "service"):
        for bucket in range(BUCKETS):
            counted = sa.Column(
                f"{part}_{bucket:02}", sa.BigInteger, nullable=False, server_default="0"
            )
            op.add_column("traffic", counted)
