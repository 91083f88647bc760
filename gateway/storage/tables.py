"""The tables, the same on SQLite and PostgreSQL.

``migrations/`` creates them; a test compares the two.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import msgspec
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

BUCKET_COLUMNS: Mapping[str, list[str]] = {
    part: [f"{part}_{bucket:02}" for bucket in range(25)] for part in ("gateway", "service")
}
"""Columns of the histograms of ``request_counts``, by the measured part of a request."""

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

KEY_ORDERED: Mapping[str, Any] = {"sqlite_with_rowid": False}
"""Options of a table whose key is most of a row: SQLite stores the row in the index of the key."""


class UTCDateTime(TypeDecorator[datetime]):
    """A time with a zone in Python, stored as UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Any:
        return _format_moment if dialect.name == "sqlite" else _convert_to_utc

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:  # noqa: ARG002 - as its base
        return _parse_moment if dialect.name == "sqlite" else None


def _convert_to_utc(value: datetime | None) -> datetime | None:
    if value is None or value.tzinfo is UTC:
        return value
    if value.tzinfo is None:
        raise ValueError("a time without a zone")
    return value.astimezone(UTC)


def _format_moment(value: datetime | None) -> str | None:
    """Formats a time as SQLAlchemy does on SQLite, in a fraction of the time.

    Without a zone, so that text order is time order.
    """
    if value is None or value.tzinfo is not UTC:
        value = _convert_to_utc(value)
        if value is None:
            return None
    # Faster than ``isoformat``, which it equals apart from the separator.
    text: str = msgspec.to_builtins(value)
    if value.microsecond:
        return f"{text[:10]} {text[11:26]}"
    return f"{text[:10]} {text[11:19]}.000000"


def _parse_moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC)


def build_columns(type_: Any, *names: str, default: Any = None) -> list[Column[Any]]:
    """Builds columns without NULL; ``default`` is that of the database."""
    return [Column(name, type_, nullable=False, server_default=default) for name in names]


_IS_ENVIRONMENT = "environment in ('live', 'sandbox')"

encryption_keys = Table(
    # One row for each key that this database was ever used with, so that a wrong key file is
    # detected at start and not at the first payment.
    "encryption_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("check_value", Text, nullable=False),
    Column("created_at", UTCDateTime, nullable=False),
)

counters = Table(
    # ``generation`` and ``restored``: see restore_detection.py. All others are change counts, see
    # change_poller.py: the row lock is held until its writer commits, so a reader of a count sees
    # every change up to it.
    "counters",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

tenant_credentials = Table(
    "tenant_credentials",
    metadata,
    Column("id", Text, primary_key=True),
    # The secret is encrypted, see encryption.py.
    *build_columns(Text, "merchant", "environment", "access_key", "secret"),
    Column("created_at", UTCDateTime, nullable=False),
    CheckConstraint(_IS_ENVIRONMENT, name="environment"),
    # Constraints keep the names that the tables had before: SQLite cannot rename one in place.
    UniqueConstraint("merchant", "environment", name="uq_pairs_merchant_environment"),
    # One access key under two merchants would let one pay from the other's account.
    UniqueConstraint("environment", "access_key", name="uq_pairs_environment_access_key"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    *build_columns(Text, "merchant", "environment", "key_hash"),
    Column("hash_key_id", Text, ForeignKey("encryption_keys.id"), nullable=False),
    Column("prefix", Text, nullable=False),
    Column("credentials_id", Text, ForeignKey("tenant_credentials.id"), nullable=False),
    Column("requests_per_hour", Integer),  # NULL: the configured limit
    Column("allowed_ips", JSON, nullable=False),  # list of networks as text; empty: any address
    Column("created_at", UTCDateTime, nullable=False),
    Column("revoked_at", UTCDateTime),
    Column("changed", BigInteger, nullable=False),  # the count in ``counters`` at the last change
    CheckConstraint(_IS_ENVIRONMENT, name="environment"),
    UniqueConstraint("name", name="uq_keys_name"),
    UniqueConstraint("key_hash", "hash_key_id", name="uq_keys_key_hash_hash_key_id"),
    Index(None, "changed"),
    Index(None, "credentials_id"),
)

capabilities = Table(
    "capabilities",
    metadata,
    *build_columns(Text, "environment", "name"),
    Column("value", Text, nullable=False),  # JSON
    Column("learned_at", UTCDateTime, nullable=False),
    PrimaryKeyConstraint("environment", "name"),
)

legacy_ids = Table(
    # Legacy ids of objects whose own id is too long for legacy clients, or that were imported. An
    # object may have two: an alias, and one that was imported later.
    "legacy_ids",
    metadata,
    *build_columns(Text, "merchant", "environment", "legacy_id", "current_id"),
    Column("imported", Boolean, nullable=False),
    Column("created_at", UTCDateTime, nullable=False),
    PrimaryKeyConstraint("merchant", "environment", "legacy_id"),
    # Not ordered by the key, by which SQLite would then search a merchant's ids for a current one.
    Index(None, "merchant", "environment", "current_id"),
)

operations = Table(
    # Operations: requests that write, from the first change until the client has the response.
    # Personal data is encrypted, and deleted as soon as it is not needed.
    "operations",
    metadata,
    # Increases; a smaller maximum means that the database was restored. The key, so that SQLite
    # adds new rows to the last page of the table.
    Column(
        "number",
        BigInteger().with_variant(Integer, "sqlite"),
        Sequence("operation_numbers"),
        primary_key=True,
    ),
    Column("id", Text, nullable=False, unique=True),
    *build_columns(
        Text, "merchant", "environment", "key_id", "key_name", "operation", "request_id"
    ),
    Column("fingerprint", Text, nullable=False),  # keyed digest of operation, ids and body
    # Its number among identical requests, if another process might begin the same one.
    Column("repetition", Integer),
    Column("idempotency", Text),  # keyed digest of the client's Idempotency-Key
    Column("state", Text, nullable=False),  # see gateway/writes/states.py
    Column("reason", Text),  # why it is in doubt, for the operator
    Column("instance", Text, nullable=False),  # the process that executes it, or did last
    Column("fence", Integer, nullable=False),  # fencing token: number of takeovers
    # Whether the client disconnected before it had the response.
    Column("is_client_disconnected", Boolean, nullable=False),
    Column("request", Text),  # the request, encrypted
    # Encrypted; stored after its delivery for 90 seconds, or with an Idempotency-Key for a day.
    Column("response", Text),
    Column("started_at", UTCDateTime, nullable=False),
    Column("ended_at", UTCDateTime),
)


def build_condition_options(condition: str) -> dict[str, Any]:
    """Returns the options of an index of the rows that meet a condition."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


# Not with IN, for which SQLite would build a table with each row that it inserts or updates.
IS_OPEN = "state <> 'answered' AND state <> 'undone'"
Index(
    # Has all that a new request is compared by: each row has a page of its own.
    "ix_operations_open",
    *(operations.c[name] for name in ("merchant", "environment", "fingerprint", "state", "id")),
    **build_condition_options(IS_OPEN),
)
HAS_IDEMPOTENCY_KEY_CONDITION = "idempotency IS NOT NULL"
UNREAD_ANSWER_CONDITION = "response IS NOT NULL AND idempotency IS NULL AND state = 'answered'"
# The same rows, in words that only the search for expired ones has. Until it has statistics,
# PostgreSQL would otherwise search the indexes by age for a fingerprint, and read every row.
EXPIRING_KEY_CONDITION = "length(idempotency) > 0"
EXPIRING_ANSWER_CONDITION = (
    "response IS NOT NULL AND idempotency IS NULL AND lower(state) = 'answered'"
)
Index(
    # Not led by ``key_id``: SQLite would choose it to search one merchant's requests.
    None,
    operations.c.idempotency,
    operations.c.key_id,
    unique=True,
    **build_condition_options(HAS_IDEMPOTENCY_KEY_CONDITION),
)
Index(
    # Operations with an Idempotency-Key, until it is deleted.
    "ix_operations_named",
    operations.c.started_at,
    **build_condition_options(EXPIRING_KEY_CONDITION),
)
Index(
    # The same, by their requests.
    "ix_operations_named_requests",
    operations.c.fingerprint,
    **build_condition_options(HAS_IDEMPOTENCY_KEY_CONDITION),
)
Index(
    # Responses that are kept in case their connection is reset.
    "ix_operations_answered",
    operations.c.fingerprint,
    **build_condition_options(UNREAD_ANSWER_CONDITION),
)
Index(
    # The same, oldest first.
    "ix_operations_answer_ages",
    operations.c.ended_at,
    **build_condition_options(EXPIRING_ANSWER_CONDITION),
)

Index(
    # Of processes that begin the same request at the same time, one succeeds.
    "ix_operations_repetitions",
    *(operations.c[name] for name in ("key_id", "fingerprint", "repetition")),
    unique=True,
    **build_condition_options("repetition IS NOT NULL"),
)

operation_objects = Table(
    # The objects that an operation or its writes name or created. Other writes on them wait for it,
    # and `trace` finds operations by them.
    "operation_objects",
    metadata,
    *build_columns(Text, "merchant", "environment", "object_id", "operation_id"),
    PrimaryKeyConstraint("merchant", "environment", "object_id", "operation_id"),
    Index(None, "operation_id"),
    **KEY_ORDERED,
)

operation_steps = Table(
    # Results of flow steps, up to and including step ``number``.
    "operation_steps",
    metadata,
    *build_columns(Text, "operation_id"),
    *build_columns(Integer, "number"),
    *build_columns(Text, "results"),  # encrypted
    PrimaryKeyConstraint("operation_id", "number"),
    **KEY_ORDERED,
)

text_chunks = Table(
    # Chunks of texts that are too long for one value, see chunks.py; deleted with their holder.
    "text_chunks",
    metadata,
    # The holder is an operation, or the state of an object; the name is that of the text.
    *build_columns(Text, "holder", "name"),
    *build_columns(Integer, "number"),
    *build_columns(LargeBinary, "ciphertext"),
    PrimaryKeyConstraint("holder", "name", "number"),
)

upstream_writes = Table(
    # Every call that may change something at the service, saved before it leaves. It contains no
    # personal data.
    "upstream_writes",
    metadata,
    *build_columns(Text, "operation_id"),
    *build_columns(Integer, "number"),  # of the step
    # A keyed digest of method, path and body. The states are those of gateway/writes/states.py.
    *build_columns(Text, "merchant", "environment", "method", "path", "call_digest", "state"),
    Column("status", Integer),
    Column("object_id", Text),  # id of the created object
    # An outcome recorded by an operator: an object id, or one of OPERATOR_OUTCOMES.
    Column("operator_outcome", Text),
    Column("recorded_at", UTCDateTime, nullable=False),
    Column("resolved_at", UTCDateTime),
    Column("changed_at", UTCDateTime),  # of a recipient, by the service's clock, if it told it
    PrimaryKeyConstraint("operation_id", "number"),
    Index(None, "merchant", "environment", "recorded_at"),
    **KEY_ORDERED,
)

UNSEEN_BATCH_CONDITION = "state = 'may exist'"
Index(
    # Batches that the service may have created and does not list.
    "ix_upstream_writes_may_exist",
    upstream_writes.c.recorded_at,
    **build_condition_options(UNSEEN_BATCH_CONDITION),
)

audit_events = Table(
    # The audit log. An empty merchant or environment stands for all.
    "audit_events",
    metadata,
    Column("id", Text, primary_key=True),
    Column("at", UTCDateTime, nullable=False),
    *build_columns(Text, "action", "actor", "merchant", "environment"),
    Column("operation_id", Text),  # id of an operation
    Index(None, "at"),
)

freezes = Table(
    # Stops of writes; an empty merchant or environment stands for all.
    "freezes",
    metadata,
    *build_columns(Text, "merchant", "environment"),
    Column("since", UTCDateTime, nullable=False),
    PrimaryKeyConstraint("merchant", "environment"),
)

instances = Table(
    # Running instances; see writes/instance_leases.py.
    "instances",
    metadata,
    Column("id", Text, primary_key=True),
    Column("renewed_at", UTCDateTime, nullable=False),
)

request_counts = Table(
    # Requests by minute, hour and day; see request_counts.py.
    "request_counts",
    metadata,
    Column("seconds", Integer, nullable=False),  # length of the span
    Column("began_at", UTCDateTime, nullable=False),
    *build_columns(Text, "merchant", "environment", "key", "operation"),  # the key's name
    *build_columns(BigInteger, "requests", "refused", "failed", "slowest_ms"),
    *build_columns(UTCDateTime, "first_at", "last_at"),
    *build_columns(BigInteger, *chain.from_iterable(BUCKET_COLUMNS.values()), default="0"),
    # Time first: rows are read and deleted by time.
    PrimaryKeyConstraint("seconds", "began_at", "merchant", "environment", "key", "operation"),
)

brownouts = Table(
    # An empty merchant, key or list of operations stands for all.
    "brownouts",
    metadata,
    Column("id", Text, primary_key=True),
    *build_columns(UTCDateTime, "begins_at", "ends_at"),
    *build_columns(Text, "merchant", "key"),
    Column("operations", JSON, nullable=False),
    Column("ended", Boolean, nullable=False),  # ended early by an operator
)

modes = Table(
    # Which service answers a key's requests of a group. An empty key stands for every key of the
    # tenant without a row of its own.
    "modes",
    metadata,
    # The name of the key, and a group of operations.
    *build_columns(Text, "merchant", "environment", "key", "part", "mode"),
    Column("since", UTCDateTime, nullable=False),
    PrimaryKeyConstraint("merchant", "environment", "key", "part"),
)

comparisons = Table(
    # Counters of answers that were compared with those of the other service.
    "comparisons",
    metadata,
    *build_columns(Text, "merchant", "environment", "key", "operation"),
    # Failed: no answer from the other service. Dropped: not compared, because the queue was full.
    *build_columns(BigInteger, "compared", "different", "failed", "dropped"),
    *build_columns(UTCDateTime, "first_at", "last_at"),
    PrimaryKeyConstraint("merchant", "environment", "key", "operation"),
)

found_differences = Table(
    # Where the answers of the two services differ, and in how many, with masked values of one.
    "found_differences",
    metadata,
    # The place is without indexes: payments[].sourceAmount
    *build_columns(Text, "merchant", "environment", "key", "operation", "kind", "place"),
    *build_columns(BigInteger, "answers"),
    *build_columns(UTCDateTime, "first_at", "last_at"),
    *build_columns(Text, "request_id", "control", "candidate", default=text("''")),
    PrimaryKeyConstraint("merchant", "environment", "key", "operation", "kind", "place"),
)
