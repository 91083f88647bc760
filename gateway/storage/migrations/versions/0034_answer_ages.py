"""Adds the index by which expired responses are found; indexes are created after all migrations."""

revision = "0034"
down_revision = "0033"


def upgrade() -> None:
    pass
