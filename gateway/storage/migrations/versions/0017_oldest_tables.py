"""The tables of 23 November 2026, the oldest that are upgraded.

Nothing creates them any more: a new database gets the newest tables (``gateway.storage.migrate``).
"""

revision = "0017"
down_revision = None


def upgrade() -> None:
    raise NotImplementedError
