"""Modes of API keys, and differences between the answers of the two services."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

KEY = ("merchant", "environment", "key", "operation")
COUNTS = ("compared", "different", "failed", "dropped")


def _build_tally_key_columns() -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in KEY]


def _build_time_columns() -> list[sa.Column[datetime]]:
    moments = ("first_at", "last_at")
    return [sa.Column(name, sa.DateTime(timezone=True), nullable=False) for name in moments]


def upgrade() -> None:
    op.create_table(
        "modes",
        sa.Column("merchant", sa.Text, nullable=False),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("part", sa.Text, nullable=False),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("merchant", "environment", "key", "part", name="pk_modes"),
    )
    op.create_table(
        "comparisons",
        *_build_tally_key_columns(),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in COUNTS),
        *_build_time_columns(),
        sa.PrimaryKeyConstraint(*KEY, name="pk_comparisons"),
    )
    op.create_table(
        "found_differences",
        *_build_tally_key_columns(),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("answers", sa.BigInteger, nullable=False),
        *_build_time_columns(),
        sa.PrimaryKeyConstraint(*KEY, "kind", "place", name="pk_found_differences"),
    )
