"""Drops two sums of durations, which nothing has read since there are histograms."""

from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    for name in ("ms", "service_ms"):
        op.drop_column("request_counts", name)
