"""Drops the brownouts that only counted requests, and the counts: `report usage` has the requests."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    brownouts = sa.table("brownouts", sa.column("refuses", sa.Boolean))
    # First: without the column they would refuse requests.
    op.execute(brownouts.delete().where(~brownouts.c.refuses))
    op.drop_column("brownouts", "refuses")
    op.drop_table("brownout_hits")
