"""Created indexes that 0020 creates again."""

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Does nothing."""
