"""Keeps an example of each difference that shadow traffic finds."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    for name in ("request_id", "control", "candidate"):
        column = sa.Column(name, sa.Text, nullable=False, server_default=sa.text("''"))
        op.add_column("found_differences", column)
