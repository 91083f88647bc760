"""Renames tables and columns to the terms that the code uses; no row changes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

TABLES = {
    "journal": "operations",
    "journal_subjects": "operation_objects",
    "journal_steps": "operation_steps",
    "writes": "upstream_writes",
    "pieces": "text_chunks",
    "acts": "audit_events",
    "pairs": "tenant_credentials",
    "keys": "api_keys",
    "remembered": "object_states",
    "learned": "capabilities",
    "ids": "legacy_ids",
}
COLUMNS = {
    "operations": {
        "why": "reason",
        "turn": "fence",
        "deserted": "is_client_disconnected",
        "asked": "request",
        "answer": "response",
        "began_at": "started_at",
    },
    "operation_objects": {"object": "object_id", "undertaking": "operation_id"},
    "operation_steps": {"undertaking": "operation_id", "given": "results"},
    "upstream_writes": {
        "undertaking": "operation_id",
        "alike": "call_digest",
        "made": "object_id",
        "told": "operator_outcome",
        "entered_at": "recorded_at",
        "settled_at": "resolved_at",
    },
    "text_chunks": {"sealed": "ciphertext"},
    "audit_events": {"what": "action", "by": "actor", "about": "operation_id"},
    "api_keys": {"pair_id": "credentials_id"},
}
INDEXES = (
    ("ix_keys_changed", "ix_api_keys_changed", "api_keys", ["changed"], None),
    ("ix_keys_pair_id", "ix_api_keys_credentials_id", "api_keys", ["credentials_id"], None),
    (
        "ix_ids_merchant_environment_current_id",
        "ix_legacy_ids_merchant_environment_current_id",
        "legacy_ids",
        ["merchant", "environment", "current_id"],
        None,
    ),
    (
        "ix_journal_open",
        "ix_operations_open",
        "operations",
        ["merchant", "environment"],
        "state in ('running', 'unsettled', 'done')",
    ),
    ("ix_journal_number", "ix_operations_number", "operations", ["number"], None),
    (
        "ix_journal_named",
        "ix_operations_named",
        "operations",
        ["started_at"],
        "idempotency IS NOT NULL",
    ),
    (
        "ix_journal_named_requests",
        "ix_operations_named_requests",
        "operations",
        ["fingerprint"],
        "idempotency IS NOT NULL",
    ),
    (
        "ix_journal_answered",
        "ix_operations_answered",
        "operations",
        ["fingerprint"],
        "response IS NOT NULL AND idempotency IS NULL AND state = 'answered'",
    ),
    (
        "ix_journal_subjects_undertaking",
        "ix_operation_objects_operation_id",
        "operation_objects",
        ["operation_id"],
        None,
    ),
    (
        "ix_writes_merchant_environment_entered_at",
        "ix_upstream_writes_merchant_environment_recorded_at",
        "upstream_writes",
        ["merchant", "environment", "recorded_at"],
        None,
    ),
    (
        "ix_writes_sent",
        "ix_upstream_writes_sent",
        "upstream_writes",
        ["merchant", "environment"],
        "state = 'sent'",
    ),
    (
        "ix_writes_may_exist",
        "ix_upstream_writes_may_exist",
        "upstream_writes",
        ["recorded_at"],
        "state = 'may exist'",
    ),
    ("ix_acts_at", "ix_audit_events_at", "audit_events", ["at"], None),
    (
        "ix_remembered_kind_updated_at",
        "ix_object_states_kind_updated_at",
        "object_states",
        ["kind", "updated_at"],
        None,
    ),
    (
        "ix_remembered_abandoned",
        "ix_object_states_abandoned",
        "object_states",
        ["kind", "merchant", "environment"],
        """facts LIKE '%"abandoned"_true%'""",
    ),
)
"""Old name, new name, table, columns and condition."""


def upgrade() -> None:
    for name, *_ in INDEXES:
        op.drop_index(name)
    for old_name, table in TABLES.items():
        op.rename_table(old_name, table)
    for table, columns in COLUMNS.items():
        for old_name, column in columns.items():
            # Both databases can; alembic would copy the table on SQLite.
            op.execute(f"ALTER TABLE {table} RENAME COLUMN {old_name} TO {column}")
    for _, name, table, names, condition in INDEXES:
        where = None if condition is None else sa.text(condition)
        op.create_index(name, table, names, sqlite_where=where, postgresql_where=where)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER SEQUENCE journal_numbers RENAME TO operation_numbers")
        for old_name, table in TABLES.items():
            op.execute(f"ALTER TABLE {table} RENAME CONSTRAINT pk_{old_name} TO pk_{table}")
