"""Numbers identical requests, so that of processes that begin the same one at once, one succeeds."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    op.add_column("operations", sa.Column("repetition", sa.Integer))
