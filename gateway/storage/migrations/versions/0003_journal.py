"""The journal of operations and their writes, freezes, and running instances."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_journal()
    _create_writes()
    op.create_table(
        "freezes",
        sa.Column("merchant", sa.Text, nullable=False),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("merchant", "environment", name="pk_freezes"),
    )
    op.create_table(
        "instances",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("beats", sa.BigInteger, nullable=False),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_instances"),
    )


def _create_journal() -> None:
    op.create_table(
        "journal",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("merchant", sa.Text, nullable=False),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("key_name", sa.Text, nullable=False),
        sa.Column("operation", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("idempotency", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("why", sa.Text),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("turn", sa.Integer, nullable=False),
        sa.Column("deserted", sa.Boolean, nullable=False),
        sa.Column("asked", sa.Text),
        sa.Column("answer", sa.Text),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_journal"),
        sa.UniqueConstraint("key_id", "idempotency", name="uq_journal_key_id_idempotency"),
    )
    is_open = sa.text("state in ('running', 'unsettled', 'done')")
    op.create_index(
        "ix_journal_open",
        "journal",
        ["merchant", "environment"],
        sqlite_where=is_open,
        postgresql_where=is_open,
    )
    op.create_table(
        "journal_subjects",
        sa.Column("merchant", sa.Text, nullable=False),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("object", sa.Text, nullable=False),
        sa.Column("undertaking", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint(
            "merchant", "environment", "object", "undertaking", name="pk_journal_subjects"
        ),
    )
    op.create_table(
        "journal_steps",
        sa.Column("undertaking", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("given", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("undertaking", "number", name="pk_journal_steps"),
    )


def _create_writes() -> None:
    op.create_table(
        "writes",
        sa.Column("undertaking", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("merchant", sa.Text, nullable=False),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("method", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("alike", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("made", sa.Text),
        sa.Column("told", sa.Text),
        sa.Column("entered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("settled_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("undertaking", "number", name="pk_writes"),
    )
    op.create_index(
        "ix_writes_merchant_environment_entered_at",
        "writes",
        ["merchant", "environment", "entered_at"],
    )
