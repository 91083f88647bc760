"""API keys, credentials, object state, discovered capabilities, and the check of the key file."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)


def _build_owner_columns() -> list[sa.Column[str]]:
    return [
        sa.Column("merchant", sa.Text, nullable=False),
        sa.Column("environment", sa.Text, nullable=False),
    ]


def upgrade() -> None:
    op.create_table(
        "encryption_keys",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("check_value", sa.Text, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_encryption_keys"),
    )
    counters = op.create_table(
        "counters",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_counters"),
    )
    op.bulk_insert(counters, [{"name": "keys", "value": 0}])
    _create_credentials_and_key_tables()
    _create_ledger_table()


def _create_credentials_and_key_tables() -> None:
    op.create_table(
        "pairs",
        sa.Column("id", sa.Text, nullable=False),
        *_build_owner_columns(),
        sa.Column("access_key", sa.Text, nullable=False),
        sa.Column("secret", sa.Text, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_pairs"),
        sa.CheckConstraint("environment in ('live', 'sandbox')", name="ck_pairs_environment"),
        sa.UniqueConstraint("merchant", "environment", name="uq_pairs_merchant_environment"),
        sa.UniqueConstraint("environment", "access_key", name="uq_pairs_environment_access_key"),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        *_build_owner_columns(),
        sa.Column("key_hash", sa.Text, nullable=False),
        sa.Column("hash_key_id", sa.Text, nullable=False),
        sa.Column("prefix", sa.Text, nullable=False),
        sa.Column("pair_id", sa.Text, nullable=False),
        sa.Column("requests_per_hour", sa.Integer),
        sa.Column("allowed_ips", sa.JSON, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("revoked_at", _MOMENT),
        sa.Column("changed", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.CheckConstraint("environment in ('live', 'sandbox')", name="ck_keys_environment"),
        sa.ForeignKeyConstraint(
            ["hash_key_id"], ["encryption_keys.id"], name="fk_keys_hash_key_id"
        ),
        sa.ForeignKeyConstraint(["pair_id"], ["pairs.id"], name="fk_keys_pair_id"),
        sa.UniqueConstraint("name", name="uq_keys_name"),
        sa.UniqueConstraint("key_hash", "hash_key_id", name="uq_keys_key_hash_hash_key_id"),
    )
    op.create_index("ix_keys_changed", "keys", ["changed"])
    op.create_index("ix_keys_pair_id", "keys", ["pair_id"])


def _create_ledger_table() -> None:
    op.create_table(
        "remembered",
        *_build_owner_columns(),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("merchant", "environment", "kind", "id", name="pk_remembered"),
    )
    op.create_table(
        "learned",
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("learned_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("environment", "name", name="pk_learned"),
    )
