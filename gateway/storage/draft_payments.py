"""Stores the payments of drafts in rows of their own, so that an edit writes only what it changes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import and_, bindparam, delete, select

from gateway.payloads import json_codec
from gateway.storage.chunks import ChunkMissing
from gateway.storage.database import FEW, Transaction
from gateway.storage.encryption import EncryptionContext
from gateway.storage.sql import Parameters, Statement, build_upsert_statement
from gateway.storage.state_tables import draft_payments
from gateway.storage.store import Store
from gateway.storage.tenants import Tenant
from mappings.lazy_sequences import SLICE_SIZE, SerializedSequence

DRAFT_PAYMENTS = "draft payments"
"""Kind whose facts are the entries of a draft, by payment id, in their order."""

_ROWS_PER_READ = 5 * SLICE_SIZE

Entry = Mapping[str, Any]

_columns = draft_payments.c
_is_of_batch = and_(
    *(_columns[name] == bindparam(name) for name in ("merchant", "environment", "batch_id"))
)
_is_row = and_(_is_of_batch, _columns.payment_id == bindparam("payment_id"))
_selected = select(_columns.payment_id, _columns.position, _columns.sealed)
_SELECT_ONE = Statement(_selected.where(_is_row))
_SELECT_NEXT = Statement(
    _selected.where(_is_of_batch, _columns.position > bindparam("after"))
    .order_by(_columns.position)
    .limit(_ROWS_PER_READ)
)
_SELECT_LAST_POSITION = Statement(
    select(_columns.position).where(_is_of_batch).order_by(_columns.position.desc()).limit(1)
)
# A changed payment stays at its position.
_UPSERT = build_upsert_statement(draft_payments, ("sealed",), inserted=("position",))
_DELETE = Statement(delete(draft_payments).where(_is_row))
_DELETE_ALL = Statement(delete(draft_payments).where(_is_of_batch))


class DraftPaymentRows:
    """The rows of the payments of drafts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def load(
        self, tx: Transaction, owner: Tenant, batch_id: str, count: int
    ) -> Sequence[Entry]:
        """Loads the entries of a draft; raises ChunkMissing if there are not ``count``.

        Then they were changed since their number was read, or rows are missing.
        """
        values, after = {**_build_key(owner, batch_id), "after": 0}, 0
        entries: Any = SerializedSequence() if count > SLICE_SIZE else []
        while rows := await tx.fetch(_SELECT_NEXT, {**values, "after": after}):
            is_long = len(rows) > FEW
            entries.extend(await tx.compute(is_long, self._decrypt_rows, owner, batch_id, rows))
            after = rows[-1].position
            if len(rows) < _ROWS_PER_READ:
                break
        if len(entries) != count:
            raise ChunkMissing(
                f"payments of draft {batch_id} of {owner.merchant} {owner.environment} are missing",
                means="the database was altered",
                do="restore it from a backup",
            )
        return entries  # type: ignore[no-any-return]

    async def load_some(
        self, tx: Transaction, owner: Tenant, batch_id: str, ids: Sequence[str]
    ) -> list[Entry]:
        """Loads those entries of a draft that have one of the ids."""
        rows = await tx.fetch(_SELECT_ONE, *_build_row_keys(owner, batch_id, ids))
        rows.sort(key=lambda row: row.position)
        return await tx.compute(len(rows) > FEW, self._decrypt_rows, owner, batch_id, rows)

    async def change(
        self, tx: Transaction, owner: Tenant, batch_id: str, entries: Mapping[str, Entry | None]
    ) -> int:
        """Stores entries by payment id, and deletes those that are None.

        Returns by how much the number of the draft's payments has increased.
        """
        key = _build_key(owner, batch_id)
        row_keys = _build_row_keys(owner, batch_id, entries)
        stored_ids = {row.payment_id for row in await tx.fetch(_SELECT_ONE, *row_keys)}
        last_position = await tx.fetch_value(_SELECT_LAST_POSITION, key) or 0
        upserts = await tx.compute(
            len(entries) > FEW, self._build_rows, owner, batch_id, entries, last_position
        )
        deleted_ids = [id_ for id_ in entries if entries[id_] is None and id_ in stored_ids]
        if upserts:
            await tx.execute(_UPSERT, *upserts)
        if deleted_ids:
            await tx.execute(_DELETE, *_build_row_keys(owner, batch_id, deleted_ids))
        return sum(row["payment_id"] not in stored_ids for row in upserts) - len(deleted_ids)

    async def delete_all(self, tx: Transaction, owner: Tenant, batch_id: str) -> None:
        await tx.execute(_DELETE_ALL, _build_key(owner, batch_id))

    def _build_rows(
        self, owner: Tenant, batch_id: str, entries: Mapping[str, Entry | None], last_position: int
    ) -> list[Parameters]:
        key, encrypt = _build_key(owner, batch_id), self._store.encryption.encrypt_bytes
        return [
            {
                **key,
                "payment_id": id_,
                "position": position,
                "sealed": encrypt(
                    json_codec.dumps_trusted(entry), _build_context(owner, batch_id, id_)
                ),
            }
            for position, (id_, entry) in enumerate(entries.items(), last_position + 1)
            if entry is not None
        ]

    def _decrypt_rows(self, owner: Tenant, batch_id: str, rows: Iterable[Any]) -> list[Entry]:
        decrypt = self._store.encryption.decrypt_bytes
        return [
            json_codec.loads_trusted(
                decrypt(row.sealed, _build_context(owner, batch_id, row.payment_id))
            )
            for row in rows
        ]


def _build_key(owner: Tenant, batch_id: str) -> dict[str, Any]:
    return {**owner._asdict(), "batch_id": batch_id}


def _build_row_keys(owner: Tenant, batch_id: str, ids: Iterable[str]) -> list[dict[str, Any]]:
    return [{**_build_key(owner, batch_id), "payment_id": id_} for id_ in ids]


def _build_context(owner: Tenant, batch_id: str, payment_id: str) -> EncryptionContext:
    # Authenticated with every row, so the wording can never change.
    return EncryptionContext("draft_payments", *owner, f"payment {payment_id} of {batch_id}")
