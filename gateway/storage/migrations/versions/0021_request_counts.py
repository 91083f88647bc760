"""Counts usage and traffic in one table, by minute, hour and day."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"

SUMS = ("requests", "refused", "failed", "ms", "service_ms")
BUCKETS = [f"{part}_{bucket:02}" for part in ("gateway", "service") for bucket in range(25)]
KEY_COLUMNS = ("seconds", "began_at", "merchant", "environment", "key", "operation")

STARTS = {
    # SQLite has text for times.
    "sqlite": ("strftime('%Y-%m-%d %H:00:00.000000', began_at)", "day || ' 00:00:00.000000'"),
    "postgresql": (
        "date_trunc('hour', began_at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'",
        "day::timestamp AT TIME ZONE 'UTC'",
    ),
}
"""Start of the hour of a row of ``traffic``, and of the day of a row of ``usage``."""


def upgrade() -> None:
    names = ("merchant", "environment", "key", "operation")
    op.create_table(
        "request_counts",
        sa.Column("seconds", sa.Integer, nullable=False),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in names),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in (*SUMS, "slowest_ms")),
        sa.Column("first_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False, server_default="0") for name in BUCKETS),
        sa.PrimaryKeyConstraint(*KEY_COLUMNS, name="pk_request_counts"),
    )
    hour, day = STARTS[op.get_bind().dialect.name]
    counted = ", ".join((*KEY_COLUMNS, *SUMS, "slowest_ms", "first_at", "last_at"))
    buckets = ", ".join(BUCKETS)
    sums = ", ".join(f"sum({name})" for name in SUMS)
    bucket_sums = ", ".join(f"sum({name})" for name in BUCKETS)
    # Spans of five minutes: the plots of the last hours show them as one minute of each.
    for seconds, start in ((60, "began_at"), (3600, hour)):
        op.execute(
            f"INSERT INTO request_counts ({counted}, {buckets}) "  # noqa: S608 - names of columns
            f"SELECT {seconds}, {start}, merchant, environment, '', operation, {sums}, "
            f"max(slowest_ms), min(began_at), max(began_at), {bucket_sums} FROM traffic "
            f"GROUP BY {start}, merchant, environment, operation"
        )
    op.execute(
        f"INSERT INTO request_counts ({counted}) "  # noqa: S608 - names of columns
        f"SELECT 86400, {day}, merchant, environment, key, operation, {', '.join(SUMS)}, 0, "
        "first_at, last_at FROM usage"
    )
    op.drop_table("traffic")
    op.drop_table("usage")
