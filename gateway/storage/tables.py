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
    Date,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Sequence,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeDecorator

from gateway.storage.durations import PARTS, columns_of

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

    def bind_processor(self, dialect: Dialect) -> Any:
        return _written if dialect.name == "sqlite" else super().bind_processor(dialect)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        if dialect.name == "sqlite":
            return _read
        return super().result_processor(dialect, coltype)


def _written(value: datetime | None) -> str | None:
    """As SQLAlchemy has moments on SQLite, and in a fraction of its time."""
    if value is None:
        return None
    if value.tzinfo is None:
        raise ValueError("a moment without a zone")
    if value.tzinfo is not UTC:
        value = value.astimezone(UTC)
    return value.isoformat(" ", "microseconds").removesuffix("+00:00")


def _read(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC)


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
    # ``keys``: a row's lock is held until its writer commits, so whoever reads a count sees every
    # change up to it. ``generation`` and ``restored``: see marks.py. ``modes``: see mode_rows.py.
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
    Index(None, "kind", "updated_at"),
)
_TELLS = """facts LIKE '%"abandoned"_true%'"""
"""As the ledger writes it. The colon would be a parameter."""
IS_ABANDONED = f"kind = 'alias' AND {_TELLS}"
"""Of a batch: its id is an alias."""
Index(
    "ix_remembered_abandoned",
    remembered.c.kind,  # by it SQLite knows this for a better one than the table's own
    remembered.c.merchant,
    remembered.c.environment,
    # Not of a kind: to see whether the index may serve, SQLite would plan each look-up of any kind anew.
    sqlite_where=text(_TELLS),
    postgresql_where=text(_TELLS),
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

journal_numbers = Sequence("journal_numbers", metadata=metadata)
"""On PostgreSQL alone: a counter row would have every instance wait for the others' commits."""

journal = Table(
    # An undertaking: a legacy request that writes, from its first change until its client has the
    # answer. What personal data it holds is sealed, and dropped as soon as nobody needs it.
    "journal",
    metadata,
    Column("id", Text, primary_key=True),
    *_owner(),
    Column("key_id", Text, nullable=False),
    Column("key_name", Text, nullable=False),
    Column("operation", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),  # keyed: of operation, ids and body
    Column("idempotency", Text),  # keyed digest of the client's Idempotency-Key
    Column("state", Text, nullable=False),  # see undertakings.py
    Column("why", Text),  # it is not settled, in words for the operator
    Column("instance", Text, nullable=False),  # who plays it, or did last
    Column("turn", Integer, nullable=False),  # how often it was taken over: fences out who had it
    Column("deserted", Boolean, nullable=False),  # its client went away before the answer
    Column("asked", Text),  # sealed
    Column("answer", Text),  # sealed; once answered, for a minute or with an Idempotency-Key
    Column("began_at", UTCDateTime, nullable=False),
    Column("ended_at", UTCDateTime),
    Column("number", BigInteger),  # only ever larger: a state that has lost some is an older one
    UniqueConstraint("key_id", "idempotency"),
    Index(None, "number"),
)
IS_OPEN = "state in ('running', 'unsettled', 'done')"
Index(
    "ix_journal_open",
    journal.c.merchant,
    journal.c.environment,
    sqlite_where=text(IS_OPEN),
    postgresql_where=text(IS_OPEN),
)
Index(
    # Those that clients gave an Idempotency-Key, until it is forgotten.
    "ix_journal_named",
    journal.c.began_at,
    sqlite_where=text("idempotency IS NOT NULL"),
    postgresql_where=text("idempotency IS NOT NULL"),
)
IS_KEPT_BRIEFLY = "answer IS NOT NULL AND idempotency IS NULL AND state = 'answered'"
Index(
    # Responses that are kept in case that their connection is reset.
    "ix_journal_answered",
    journal.c.ended_at,
    sqlite_where=text(IS_KEPT_BRIEFLY),
    postgresql_where=text(IS_KEPT_BRIEFLY),
)

journal_subjects = Table(
    # Which objects an undertaking or its writes name, or made: what must wait for it, and what
    # `trace` finds.
    "journal_subjects",
    metadata,
    *_owner(),
    Column("object", Text, nullable=False),
    Column("undertaking", Text, nullable=False),
    PrimaryKeyConstraint("merchant", "environment", "object", "undertaking"),
    Index(None, "undertaking"),
)

journal_steps = Table(
    # What the steps of its flow were given, up to and including step ``number``.
    "journal_steps",
    metadata,
    Column("undertaking", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("given", Text, nullable=False),  # sealed
    PrimaryKeyConstraint("undertaking", "number"),
)

pieces = Table(
    # Of texts that are too long for a value, see pieces.py. They go with what holds them.
    "pieces",
    metadata,
    Column("holder", Text, nullable=False),  # an undertaking, or what is remembered of an object
    Column("name", Text, nullable=False),  # of the text
    Column("number", Integer, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    PrimaryKeyConstraint("holder", "name", "number"),
)

writes = Table(
    # Every call that may change something at the service, entered before it leaves. Kept for good;
    # it holds no personal data.
    "writes",
    metadata,
    Column("undertaking", Text, nullable=False),
    Column("number", Integer, nullable=False),  # of its step
    *_owner(),
    Column("method", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("alike", Text, nullable=False),  # keyed digest of method, path and body
    Column("state", Text, nullable=False),  # see undertakings.py
    Column("status", Integer),
    Column("made", Text),  # the id of what it made
    Column("told", Text),  # what an operator found out: an id, or one of TOLD
    Column("entered_at", UTCDateTime, nullable=False),
    Column("settled_at", UTCDateTime),
    PrimaryKeyConstraint("undertaking", "number"),
    Index(None, "merchant", "environment", "entered_at"),
)
IS_SENT = "state = 'sent'"
Index(
    "ix_writes_sent",
    writes.c.merchant,
    writes.c.environment,
    sqlite_where=text(IS_SENT),
    postgresql_where=text(IS_SENT),
)

IS_UNSEEN = "state = 'may exist'"
Index(
    # Batches that the service may have made, and shows to nobody.
    "ix_writes_may_exist",
    writes.c.entered_at,
    sqlite_where=text(IS_UNSEEN),
    postgresql_where=text(IS_UNSEEN),
)

acts = Table(
    # What operators did to the gateway, and who: kept for good. An empty merchant or environment
    # is every one.
    "acts",
    metadata,
    Column("id", Text, primary_key=True),
    Column("at", UTCDateTime, nullable=False),
    Column("what", Text, nullable=False),
    Column("by", Text, nullable=False),  # the user of the operating system
    *_owner(),
    Column("about", Text),  # an undertaking's id
    Index(None, "at"),
)

freezes = Table(
    # Writes that an operator stopped; an empty merchant or environment is every one.
    "freezes",
    metadata,
    *_owner(),
    Column("since", UTCDateTime, nullable=False),
    PrimaryKeyConstraint("merchant", "environment"),
)

instances = Table(
    # Who runs: one that stops counting is gone, whatever the clocks of the machines say.
    "instances",
    metadata,
    Column("id", Text, primary_key=True),
    Column("beats", BigInteger, nullable=False),
    Column("began_at", UTCDateTime, nullable=False),
    Column("large", Text, nullable=False, server_default=text("''")),
)

usage = Table(
    "usage",
    metadata,
    *_owner(),
    Column("key", Text, nullable=False),  # its name
    Column("operation", Text, nullable=False),
    Column("day", Date, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("refused", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("ms", BigInteger, nullable=False),
    Column("service_ms", BigInteger, nullable=False),
    Column("first_at", UTCDateTime, nullable=False),
    Column("last_at", UTCDateTime, nullable=False),
    PrimaryKeyConstraint("merchant", "environment", "key", "operation", "day"),
)

traffic = Table(
    # The last days of traffic, by spans of a few minutes; see traffic_rows.py.
    "traffic",
    metadata,
    Column("began_at", UTCDateTime, nullable=False),  # of the span
    *_owner(),
    Column("operation", Text, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("refused", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("ms", BigInteger, nullable=False),
    Column("service_ms", BigInteger, nullable=False),
    Column("slowest_ms", BigInteger, nullable=False),
    *(
        Column(name, BigInteger, nullable=False, server_default="0")
        for part in PARTS
        for name in columns_of(part)
    ),
    # By time first: it is read and forgotten by time.
    PrimaryKeyConstraint("began_at", "merchant", "environment", "operation"),
)

brownouts = Table(
    # An empty merchant or key is every one, and so is an empty list of operations.
    "brownouts",
    metadata,
    Column("id", Text, primary_key=True),
    Column("begins_at", UTCDateTime, nullable=False),
    Column("ends_at", UTCDateTime, nullable=False),
    Column("merchant", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("operations", JSON, nullable=False),
    Column("refuses", Boolean, nullable=False),  # else it only counts whom it would have hit
    Column("ended", Boolean, nullable=False),  # switched off before its time
)

brownout_hits = Table(
    "brownout_hits",
    metadata,
    Column("brownout", Text, nullable=False),
    *_owner(),
    Column("key", Text, nullable=False),
    Column("operation", Text, nullable=False),
    Column("requests", BigInteger, nullable=False),
    PrimaryKeyConstraint("brownout", "merchant", "environment", "key", "operation"),
)

modes = Table(
    # Which service answers a key's requests of a group. An empty key is every one of its merchant
    # that has no row of its own.
    "modes",
    metadata,
    *_owner(),
    Column("key", Text, nullable=False),  # its name
    Column("part", Text, nullable=False),  # a group of operations
    Column("mode", Text, nullable=False),
    Column("since", UTCDateTime, nullable=False),
    PrimaryKeyConstraint("merchant", "environment", "key", "part"),
)

comparisons = Table(
    # How many answers of an operation were compared with the other service's, and what came of it.
    "comparisons",
    metadata,
    *_owner(),
    Column("key", Text, nullable=False),
    Column("operation", Text, nullable=False),
    Column("compared", BigInteger, nullable=False),
    Column("different", BigInteger, nullable=False),
    Column(
        "failed", BigInteger, nullable=False
    ),  # the other service gave no answer to compare with
    Column("dropped", BigInteger, nullable=False),  # it was behind, so it was not asked
    Column("first_at", UTCDateTime, nullable=False),
    Column("last_at", UTCDateTime, nullable=False),
    PrimaryKeyConstraint("merchant", "environment", "key", "operation"),
)

found_differences = Table(
    # Where the two services' answers differ, and in how many; no value of either.
    "found_differences",
    metadata,
    *_owner(),
    Column("key", Text, nullable=False),
    Column("operation", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("place", Text, nullable=False),  # in normal form: payments[].sourceAmount
    Column("answers", BigInteger, nullable=False),
    Column("first_at", UTCDateTime, nullable=False),
    Column("last_at", UTCDateTime, nullable=False),
    PrimaryKeyConstraint("merchant", "environment", "key", "operation", "kind", "place"),
)
