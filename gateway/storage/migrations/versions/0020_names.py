"""Renames tables and columns to the terms that the code uses; no row changes."""

from alembic import op

revision = "0020"
down_revision = "0019"

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
OLD_INDEXES = (
    "ix_keys_changed",
    "ix_keys_pair_id",
    "ix_ids_merchant_environment_current_id",
    "ix_journal_named",
    "ix_journal_named_requests",
    "ix_journal_answered",
    "ix_journal_subjects_undertaking",
    "ix_writes_merchant_environment_entered_at",
    "ix_writes_may_exist",
    "ix_acts_at",
    "ix_journal_open",
    "ix_journal_number",
    "ix_writes_sent",
)


def upgrade() -> None:
    for name in OLD_INDEXES:
        op.execute(f"DROP INDEX IF EXISTS {name}")  # some are of earlier versions of 0018 and 0019
    for old_name, table in TABLES.items():
        op.rename_table(old_name, table)
    for table, columns in COLUMNS.items():
        for old_name, column in columns.items():
            # Both databases can; alembic would copy the table on SQLite.
            op.execute(f"ALTER TABLE {table} RENAME COLUMN {old_name} TO {column}")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER SEQUENCE journal_numbers RENAME TO operation_numbers")
        for old_name, table in TABLES.items():
            op.execute(f"ALTER TABLE {table} RENAME CONSTRAINT pk_{old_name} TO pk_{table}")
