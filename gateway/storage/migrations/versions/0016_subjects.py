"""An index of the objects that an operation names, used to load and to delete operations."""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_journal_subjects_undertaking", "journal_subjects", ["undertaking"])
