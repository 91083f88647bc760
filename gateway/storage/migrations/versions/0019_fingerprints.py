"""Created indexes that 0020 creates again."""

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Does nothing."""
