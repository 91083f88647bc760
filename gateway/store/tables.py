"""The tables, the same on SQLite and PostgreSQL.

``migrations/`` makes them; a test holds the two against each other.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeDecorator

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


class UTCDateTime(TypeDecorator[datetime]):
    """A moment; always with a zone outside, always UTC inside."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a moment without a zone")
        moment = value.astimezone(UTC)
        # SQLite has no type for it: text without a zone, so that text order is time order.
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)


def _owner() -> list[Column[Any]]:
    return [
        Column("merchant", Text, nullable=False),
        Column("environment", Text, nullable=False),
    ]


_ENVIRONMENTS = "environment in ('live', 'sandbox')"

encryption_keys = Table(
    # One row for each key that this state was ever used with: whether the key file at hand is
    # the right one is found at start, not at the first payment.
    "encryption_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("check_value", Text, nullable=False),
    Column("created_at", UTCDateTime, nullable=False),
)

counters = Table(
    # A row's lock is held until its writer commits, so whoever reads a count sees every change
    # up to it.
    "counters",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

pairs = Table(
    "pairs",
    metadata,
    Column("id", Text, primary_key=True),
    *_owner(),
    Column("access_key", Text, nullable=False),
    Column("secret", Text, nullable=False),  # sealed, see crypto.py
    Column("created_at", UTCDateTime, nullable=False),
    CheckConstraint(_ENVIRONMENTS, name="environment"),
    UniqueConstraint("merchant", "environment"),
    # One access key under two merchants would let one pay from the other's account.
    UniqueConstraint("environment", "access_key"),
)

keys = Table(
    "keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    *_owner(),
    Column("key_hash", Text, nullable=False),
    Column("hash_key_id", Text, ForeignKey("encryption_keys.id"), nullable=False),
    Column("prefix", Text, nullable=False),
    Column("pair_id", Text, ForeignKey("pairs.id"), nullable=False),
    Column("requests_per_hour", Integer),  # None: the configured limit
    Column("allowed_ips", JSON, nullable=False),  # a list of networks' text; empty: any address
    Column("created_at", UTCDateTime, nullable=False),
    Column("revoked_at", UTCDateTime),
    Column("changed", BigInteger, nullable=False),  # the count of ``counters`` when it last did
    CheckConstraint(_ENVIRONMENTS, name="environment"),
    UniqueConstraint("key_hash", "hash_key_id"),
    Index(None, "changed"),
    Index(None, "pair_id"),
)

remembered = Table(
    "remembered",
    metadata,
    *_owner(),
    Column("kind", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("facts", Text, nullable=False),  # a JSON object; its decimals are not floats
    Column("updated_at", UTCDateTime, nullable=False),
    PrimaryKeyConstraint("merchant", "environment", "kind", "id"),
)

learned = Table(
    "learned",
    metadata,
    Column("environment", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("value", Text, nullable=False),  # JSON
    Column("learned_at", UTCDateTime, nullable=False),
    PrimaryKeyConstraint("environment", "name"),
)

ids = Table(
    # What legacy clients call an object whose own id is too long for them, or another. Two legacy
    # ids may stand for one object: a stand-in, and one imported later.
    "ids",
    metadata,
    *_owner(),
    Column("legacy_id", Text, nullable=False),
    Column("current_id", Text, nullable=False),
    Column("imported", Boolean, nullable=False),
    Column("created_at", UTCDateTime, nullable=False),
    PrimaryKeyConstraint("merchant", "environment", "legacy_id"),
    Index(None, "merchant", "environment", "current_id"),
)
