"""How long requests took, in buckets, beside the traffic that is counted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

BUCKETS = 25


def upgrade() -> None:
    # With a default: a process of the version before may still be counting.
    for part in ("gateway", "service"):
        for bucket in range(BUCKETS):
            counted = sa.Column(
                f"{part}_{bucket:02}", sa.BigInteger, nullable=False, server_default="0"
            )
            op.add_column("traffic", counted)
