"""The tables of object state: one for each kind of objects, with a column for each fact.

A kind is described once, as facts and their columns; its statements are built from that.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    and_,
    bindparam,
    delete,
    false,
    select,
    text,
)

from gateway.payloads import json_codec
from gateway.storage.database import FEW
from gateway.storage.sql import (
    AnyOf,
    Statement,
    build_insert_if_absent_statement,
    build_upsert_statement,
)
from gateway.storage.tables import (
    KEY_ORDERED,
    UTCDateTime,
    build_columns,
    build_condition_options,
    metadata,
)

_KEY = ("merchant", "environment", "id")


class FactType(NamedTuple):
    """How a fact is stored. A missing fact is encoded from None; NULL is a missing fact."""

    type: Any
    encode: Callable[[Any], Any] = lambda fact: fact
    decode: Callable[[Any], Any] = lambda stored: stored
    options: Mapping[str, Any] = {}


def _encode_text(fact: Any) -> str | None:
    """Encodes a text; a service may send any value in its place, and PostgreSQL takes no NUL."""
    if fact is None:
        return None
    return str(fact).replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


TEXT, NUMBER = FactType(Text, _encode_text), FactType(Integer)
VALUE = FactType(
    Text,
    lambda fact: None if fact is None else json_codec.dumps_trusted(fact).decode(),
    json_codec.loads_trusted,
)
"""Any JSON value."""
FLAG = FactType(
    Boolean,
    bool,
    lambda stored: bool(stored) or None,
    {"nullable": False, "server_default": false()},
)
"""True or missing."""
BOOLEAN = FactType(Boolean, decode=bool)
"""True, false or missing."""


class StateTable:
    """The table of a kind of objects, and the statements on it.

    A SELECT returns the id, the columns of facts, and the column ``others`` if there is one: the
    JSON of all facts without a column, encrypted if ``is_encrypted``. In rows that were written
    before their facts had columns, it has all facts.
    """

    def __init__(
        self,
        name: str,
        facts: Mapping[str, tuple[str, FactType]],
        *constraints: CheckConstraint,
        others: str | None = None,
        is_encrypted: bool = False,
        is_key_ordered: bool = True,
    ) -> None:
        self.others, self.is_encrypted = others, is_encrypted
        self._facts = facts
        self._missing = {name: type_.encode(None) for name, type_ in facts.values()}
        columns = [*self._missing] + ([others] if others else [])
        self.table = table = Table(
            name,
            metadata,
            *build_columns(Text, *_KEY),
            *(Column(name, type_.type, **type_.options) for name, type_ in facts.values()),
            *([Column(others, Text)] if others else []),
            Column("updated_at", UTCDateTime, nullable=False),
            PrimaryKeyConstraint(*_KEY),
            *constraints,
            **(KEY_ORDERED if is_key_ordered and not is_encrypted else {}),
        )
        is_own = and_(*(table.c[key] == bindparam(key) for key in _KEY[:2]))
        is_this = and_(is_own, table.c.id == bindparam("id"))
        selected = select(table.c.id, *(table.c[column] for column in columns))
        own_rows = self.own_rows = selected.where(is_own)
        self.select_one = Statement(selected.where(is_this))
        self.select_all = Statement(own_rows)
        self.select_first = Statement(own_rows.limit(FEW + 1))
        self.select_some = Statement(own_rows.where(AnyOf(table.c.id, "ids")))
        self.delete = Statement(delete(table).where(is_this))
        self.insert = build_insert_if_absent_statement(table, (*_KEY, *columns, "updated_at"))
        self.upsert = build_upsert_statement(table, (*columns, "updated_at"))

    def encode_columns(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        columns = dict(self._missing)
        for name, fact in facts.items():
            if name in self._facts:
                column, type_ = self._facts[name]
                columns[column] = type_.encode(fact)
        return columns

    def select_other_facts(self, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the facts that have no column; raises TypeError if the table has no place."""
        # The same object: it may be encoded already.
        if not self._facts.keys() & facts.keys():
            other_facts = facts
        else:
            other_facts = {name: fact for name, fact in facts.items() if name not in self._facts}
        if other_facts and self.others is None:
            raise TypeError(f"{self.table.name} has no column for {', '.join(other_facts)}")
        return other_facts

    def decode_columns(self, row: Sequence[Any]) -> dict[str, Any]:
        """Decodes the facts that have columns from a selected row."""
        facts = {}
        for fact, stored in zip(self._facts, row[1:], strict=False):
            if stored is not None and (value := self._facts[fact][1].decode(stored)) is not None:
                facts[fact] = value
        return facts

    def select_stored_others(self, row: Sequence[Any]) -> str | None:
        """Returns the stored JSON of the facts without a column; None if there are none."""
        return row[-1] if self.others else None


RECIPIENT_LOCK_KIND = "payout turn"
"""The kind of object state that holds the lock on a recipient: the id of the operation."""

PAYMENT_COUNT = "payment count"
"""The fact that a batch's payments have rows of their own, and how many there are."""

IS_SUPERSEDED = "is_superseded"
"""The condition of an index: a redirect from a superseded batch."""

# Not with IN, for which SQLite would build a table with each row that it inserts or updates.
_IS_LOCKED = " OR ".join(
    f"phase = '{phase}'" for phase in ("editing", "making", "quoting", "starting", "deleting")
)
_IS_PHASE = f"phase = 'draft' OR phase = 'sent' OR phase = 'deleted' OR {_IS_LOCKED}"
_IS_LOCKED_SINCE = f"since IS NULL OR {_IS_LOCKED}"
_IS_DRAFT_HERE = "phase <> 'draft' OR upstream_id IS NULL"

STATE_TABLES: Mapping[str, StateTable] = {
    # An id by which an object is found that is stored under another: the id of a batch at the
    # service, or that of a payment.
    "alias": StateTable(
        "id_redirects",
        {
            "id": ("first_id", TEXT),
            "batch": ("batch_id", TEXT),
            "createdAt": ("created_at", TEXT),
            "started": ("started_at", TEXT),
            "abandoned": (IS_SUPERSEDED, FLAG),
            "gone": ("is_removed", FLAG),
        },
        # SQLite would search a merchant's redirects by the key, and not by the index of superseded ones.
        is_key_ordered=False,
    ),
    "recipient": StateTable(
        "recipient_states",
        {
            "status": ("status", TEXT),
            "deleted": ("is_deleted", FLAG),
            "still_there": ("is_still_there", FLAG),
            "autoswitch": ("autoswitch", VALUE),
            "holdup": ("holdup", VALUE),
            "imported": ("imported", VALUE),
        },
    ),
    # The operation that changes the payout methods of a recipient.
    RECIPIENT_LOCK_KIND: StateTable("recipient_locks", {"holder": ("operation_id", TEXT)}),
    # Batches that went through the legacy service, by legacy id.
    "begun": StateTable(
        "batch_services",
        {"at": ("service", TEXT), "by": ("operation_id", TEXT)},
        CheckConstraint("service = 'legacy'", name="service"),
    ),
    # When the legacy service's data of a merchant was imported.
    "cutover": StateTable("cutover_imports", {"at": ("imported_at", TEXT)}),
    "complete": StateTable(
        "complete_batches",
        {
            "payments": ("payment_count", NUMBER),
            "newest": ("newest_created_at", TEXT),
        },
    ),
    "country": StateTable("account_countries", {"account_number": ("needs_account_number", FLAG)}),
    # Open changes of a batch with a client's own signature: the payment that each adds, by its name.
    "signed": StateTable("signed_changes", {"last": ("last_name", TEXT)}, others="payments"),
    "signed adds": StateTable("signed_adds", {}, others="payments"),
    "batch": StateTable(
        "batches",
        {
            "phase": ("phase", TEXT),
            "since": ("since", TEXT),
            "version": ("version", NUMBER),
            "upstream": ("upstream_id", TEXT),
            "is_new": ("is_new", FLAG),
            "elsewhere": ("is_external", FLAG),
            "imported": ("imported_version", NUMBER),
            "started": ("started_at", TEXT),
            "currency": ("currency", TEXT),
            "createdAt": ("created_at", TEXT),
            "updatedAt": ("changed_at", TEXT),
            "completedAt": ("completed_at", TEXT),
            "abandoned": ("superseded_ids", VALUE),
            "has_memos": ("has_memos", BOOLEAN),
            "together": ("deletion_request", TEXT),
        },
        CheckConstraint(_IS_PHASE, name="phase"),
        CheckConstraint(_IS_LOCKED_SINCE, name="since"),
        CheckConstraint(_IS_DRAFT_HERE, name="draft"),
        others="sealed",  # what people wrote: descriptions, and payments that are being added
        is_encrypted=True,
    ),
    # Payments of a draft have rows of their own, and this row has their number.
    "payments": StateTable(
        "batch_payments",
        {PAYMENT_COUNT: ("payment_count", NUMBER)},
        others="sealed",
        is_encrypted=True,
    ),
}
"""The table of each kind of objects."""

id_redirects, batch_payments, signed_changes = (
    STATE_TABLES[kind].table for kind in ("alias", "payments", "signed")
)
SELECT_SUPERSEDED = Statement(STATE_TABLES["alias"].own_rows.where(text(IS_SUPERSEDED)))
Index(
    "ix_id_redirects_superseded",
    id_redirects.c.merchant,
    id_redirects.c.environment,
    **build_condition_options(IS_SUPERSEDED),
)
draft_payments = Table(
    "draft_payments",
    metadata,
    *build_columns(Text, "merchant", "environment", "batch_id", "payment_id"),
    *build_columns(Integer, "position"),  # in the batch; increases, with gaps
    *build_columns(LargeBinary, "sealed"),
    PrimaryKeyConstraint("merchant", "environment", "batch_id", "payment_id"),
    UniqueConstraint("merchant", "environment", "batch_id", "position"),
    **KEY_ORDERED,
)
# For retention.
Index(None, batch_payments.c.updated_at)
Index(None, signed_changes.c.updated_at)
