"""Stores the rows of a write in fewer pages: SQLite writes each page that a commit changes."""

import re

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"

WITHOUT_ROWID = (
    "operation_objects",
    "operation_steps",
    "upstream_writes",
    "recipient_states",
    "recipient_locks",
    "batch_services",
    "cutover_imports",
    "complete_batches",
    "account_countries",
    "signed_changes",
    "signed_adds",
)
"""Tables whose primary key is most of a row."""


def upgrade() -> None:
    # Operations of the first versions have none. Below the others, which must not change: a lower
    # maximum would mean that the database was restored.
    op.execute(
        "UPDATE operations SET number = numbered.place - 1 -"
        " (SELECT count(*) FROM operations WHERE number IS NULL)"
        " FROM (SELECT id, row_number() OVER (ORDER BY started_at, id) AS place"
        " FROM operations WHERE number IS NULL) AS numbered WHERE numbered.id = operations.id"
    )
    for name in ("ix_operations_number", "ix_operations_open", "ix_upstream_writes_sent"):
        op.execute(f"DROP INDEX IF EXISTS {name}")  # of an earlier version of 0020
    if op.get_bind().dialect.name == "sqlite":
        _copy_operations()
        for table in WITHOUT_ROWID:
            _copy_table(table, " WITHOUT ROWID")
        _copy_table("batches")
    else:
        key = sa.inspect(op.get_bind()).get_pk_constraint("operations")["name"]
        op.drop_constraint(str(key), "operations")
        op.drop_constraint("uq_journal_key_id_idempotency", "operations")
        op.create_primary_key("pk_operations", "operations", ["number"])
        op.create_unique_constraint("uq_operations_id", "operations", ["id"])


def _copy_operations() -> None:
    op.rename_table("operations", "old_operations")
    op.execute(
        "CREATE TABLE operations (number INTEGER NOT NULL, id TEXT NOT NULL,"
        " merchant TEXT NOT NULL, environment TEXT NOT NULL, key_id TEXT NOT NULL,"
        " key_name TEXT NOT NULL, operation TEXT NOT NULL, request_id TEXT NOT NULL,"
        " fingerprint TEXT NOT NULL, idempotency TEXT, state TEXT NOT NULL, reason TEXT,"
        " instance TEXT NOT NULL, fence INTEGER NOT NULL, is_client_disconnected BOOLEAN NOT NULL,"
        " request TEXT, response TEXT, started_at DATETIME NOT NULL, ended_at DATETIME,"
        " CONSTRAINT pk_operations PRIMARY KEY (number), CONSTRAINT uq_operations_id UNIQUE (id))"
    )
    columns = (
        "number, id, merchant, environment, key_id, key_name, operation, request_id, fingerprint,"
        " idempotency, state, reason, instance, fence, is_client_disconnected, request, response,"
        " started_at, ended_at"
    )
    op.execute(
        f"INSERT INTO operations ({columns}) SELECT {columns} FROM old_operations ORDER BY number"  # noqa: S608
    )
    op.drop_table("old_operations")


def _copy_table(table: str, options: str = "") -> None:
    query = sa.text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :table")
    creation = op.get_bind().scalars(query, {"table": table}).one()
    op.rename_table(table, f"old_{table}")
    # For a condition with IN, SQLite builds a table with each row that it inserts or updates.
    creation = re.sub(r"phase IN \(([^()]*)\)", _replace_in, creation)
    op.execute(sa.text(f"{creation}{options}".replace(":", r"\:")))
    op.execute(f"INSERT INTO {table} SELECT * FROM old_{table}")  # noqa: S608
    op.drop_table(f"old_{table}")


def _replace_in(condition: re.Match[str]) -> str:
    return " OR ".join(f"phase = {phase}" for phase in condition[1].split(", "))
