"""Stores object state: facts of objects that the current interface has no place for."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from functools import partial
from itertools import chain
from json.encoder import encode_basestring_ascii
from typing import Any
from zlib import crc32

from sqlalchemy import select, text

from gateway.payloads import json_codec, stored_json
from gateway.payloads.stored_json import StoredText
from gateway.payloads.worker_thread import run_in_thread_if
from gateway.storage import chunks
from gateway.storage.database import FEW, Transaction
from gateway.storage.draft_payments import DRAFT_PAYMENTS, DraftPaymentRows
from gateway.storage.encryption import EncryptionContext
from gateway.storage.id_rows import load_legacy_ids
from gateway.storage.operation_statements import SELECT_CHANGES_SINCE, SELECT_UNSEEN_BATCHES
from gateway.storage.sql import Parameters
from gateway.storage.state_changes import (
    EncodedFacts,
    compute_new_facts,
    encode_long_changes,
    has_long_changes,
    is_full_replacement,
)
from gateway.storage.state_tables import (
    IS_SUPERSEDED,
    PAYMENT_COUNT,
    SELECT_SUPERSEDED,
    STATE_TABLES,
    id_redirects,
)
from gateway.storage.store import Store
from gateway.storage.tenants import Tenant
from gateway.writes import states
from mappings.dates import EARLIEST_INSTANT
from mappings.effects import MAX_READ_LAG, CompareAndSet, LoadFacts
from mappings.lazy_sequences import SLICE_SIZE, LazySequence, iterate_chunks, iterate_slices
from mappings.outcome_matching import CREATION_TOLERANCE, EARLY_CREATION_TOLERANCE

_MAX_INLINE_LENGTH = 16 * 1024
"""Length of facts, in characters, above which they are decoded in a worker thread."""

_LONGEST_CALL = timedelta(seconds=5)
"""How long after its time of sending a change is executed, unless the service tells when."""


class ObjectStateStore:
    """The facts of objects, by tenant, kind and id; every method raises StoreUnavailable.

    ``state_tables.py`` says which facts a kind has, and in which columns they are.
    """

    def __init__(
        self, store: Store, find_max_clock_error: Callable[[str], float | None] = lambda _name: None
    ) -> None:
        self._store = store
        self._find_max_clock_error = find_max_clock_error
        self._draft_payments = DraftPaymentRows(store)

    async def load(self, owner: Tenant, kind: str, id: str) -> dict[str, Any]:  # noqa: A002 - the documents' word
        """Loads the facts of an object; an empty dict if it has none."""
        if (facts := self.load_now(owner, kind, id)) is not None:
            return facts
        table, row = STATE_TABLES[kind], {**owner._asdict(), "id": id}
        rows = await self._store.fetch_by_key(table.select_one, row)
        return (await self._decode_facts_by_id(owner, kind, rows)).get(id, {}) if rows else {}

    def load_now(
        self,
        owner: Tenant,
        kind: str,
        id: str | None,  # noqa: A002
    ) -> dict[str, Any] | None:
        """Loads the facts of an object as ``load``; None if that has to wait, or takes long."""
        if id is None or (table := STATE_TABLES[kind]).is_encrypted:
            return None
        row = {"merchant": owner.merchant, "environment": owner.environment, "id": id}
        rows = self._store.database.fetch_now(table.select_one, row)
        if not rows:
            return None if rows is None else {}
        if len(table.select_stored_others(rows[0]) or "") > _MAX_INLINE_LENGTH:
            return None
        return self._decode_unchunked_facts_by_id(owner, kind, rows).get(id, {})

    async def find_first_id(self, owner: Tenant, id_: str) -> str:
        """Finds the id under which facts are stored, given any id of the object at the service."""
        return str((await self.load(owner, "alias", id_)).get("id") or id_)

    async def is_batch_superseded_for_any_tenant(self, environment: str, batch_id: str) -> bool:
        """Whether a batch of any merchant is superseded; for requests whose tenant is unknown."""
        table = id_redirects.c
        query = select(table.id).where(
            table.environment == environment, table.id == batch_id, text(IS_SUPERSEDED)
        )
        return bool(await self._store.fetch(query))

    def load_facts(self, tenant: Tenant, step: LoadFacts) -> Awaitable[Any]:
        """Loads what a step of a flow asks for."""
        if step.kind in ("may exist", "being created"):
            return self._load_times_of_unseen_batches(tenant, step)
        if step.id is not None and step.ids is not None:
            return self._load_payments_of_draft(tenant, step.id, step.ids)
        if step.id is not None:
            return self.load(tenant, step.kind, step.id)
        if step.kind == "legacy id":
            return load_legacy_ids(self._store, tenant, step.ids or ())
        if step.kind == "abandoned":
            return self.load_superseded_batch_aliases(tenant)
        if step.kind == "changed":
            return self._load_recent_changes(tenant, *step.ids or ())
        return self.load_facts_by_id(tenant, step.kind, step.ids)

    async def load_facts_by_id(
        self, owner: Tenant, kind: str, among: Sequence[str] | None = None
    ) -> dict[str, dict[str, Any]]:
        """Loads the facts of a kind's objects, by id: of all objects, or of those in ``among``."""
        values, table = owner._asdict(), STATE_TABLES[kind]
        if among is None:
            rows = (
                None
                if table.is_encrypted
                else self._store.database.fetch_now(table.select_first, values)
            )
            if rows is None or len(rows) > FEW:
                rows = await self._store.fetch(table.select_all, values)
        elif len(ids := tuple(sorted(set(among)))) > 1:
            values, is_brief = {**values, "ids": ids}, len(ids) <= FEW
            rows = None
            if is_brief and not table.is_encrypted:
                rows = self._store.database.fetch_now(table.select_some, values)
            if rows is None:
                rows = await self._store.read(
                    lambda tx: tx.fetch(table.select_some, values), is_brief=is_brief
                )
        else:
            facts_by_id = {id_: await self.load(owner, kind, id_) for id_ in ids}
            return {id_: facts for id_, facts in facts_by_id.items() if facts}
        return await self._decode_facts_by_id(owner, kind, rows) if rows else {}

    async def _load_payments_of_draft(
        self, owner: Tenant, batch_id: str, ids: Sequence[str]
    ) -> dict[str, Any]:
        entries = await self._store.read(
            lambda tx: self._draft_payments.load_some(tx, owner, batch_id, ids),
            is_brief=len(ids) <= FEW,
        )
        return {"entries": entries}

    async def load_superseded_batch_aliases(self, owner: Tenant) -> dict[str, dict[str, Any]]:
        """Loads the aliases of superseded batches, with an index: most aliases are of payments."""
        rows = await self._store.fetch(SELECT_SUPERSEDED, owner._asdict())
        return await self._decode_facts_by_id(owner, "alias", rows)

    async def _load_times_of_unseen_batches(
        self, owner: Tenant, step: LoadFacts
    ) -> dict[str, tuple[str, str]]:
        """Loads when each batch was made that may exist, by operation id; see ``LoadFacts``."""
        (batch_id,) = step.ids or (step.id,)
        row = {**owner._asdict(), "object_id": batch_id}
        rows = await self._store.fetch(SELECT_UNSEEN_BATCHES, row)
        tolerance, error = CREATION_TOLERANCE, self._find_max_clock_error(owner.environment)
        # Recorded before it is sent: the batch can only be older by a wrong clock or a cut date.
        if error is not None:
            tolerance = min(tolerance, EARLY_CREATION_TOLERANCE + timedelta(seconds=error))
        return {
            row.operation_id: (
                (row.recorded_at - tolerance).isoformat(),
                (row.recorded_at + CREATION_TOLERANCE).isoformat(),
            )
            for row in rows
            if step.kind == "may exist" or row.state == states.SENT
        }

    async def _load_recent_changes(self, owner: Tenant, id_: str) -> dict[str, Any]:
        """Loads the changes that the service need not show yet; see ``LoadFacts``."""
        since = self._store.compute_time_before(MAX_READ_LAG)
        row = {**owner._asdict(), "object_id": id_, "since": since}
        rows = await self._store.fetch_by_key(SELECT_CHANGES_SINCE, row)
        changes, latest = {}, EARLIEST_INSTANT
        for row in rows:
            changed_at = row.changed_at or row.recorded_at
            # A service that writes whole seconds may show an earlier change of the same second.
            if not changed_at.microsecond and changed_at <= latest:
                changed_at = row.recorded_at
            latest = max(latest, row.changed_at or row.recorded_at + _LONGEST_CALL)
            times = row.recorded_at.isoformat(), changed_at.isoformat()
            changes[row.path] = [row.object_id, *times]
        return changes

    async def compare_and_set_all(self, owner: Tenant, records: Sequence[CompareAndSet]) -> None:
        """Changes the facts of several objects in one transaction; raises Conflict.

        None deletes a fact, and the object with its last one. A fact is replaced as a whole: its
        content is not merged.
        """
        locks = self.list_lock_names(owner, records)
        is_long = has_long_changes(records)
        if is_long:
            records = await encode_long_changes(records)

        async def apply_all(tx: Transaction) -> None:
            await tx.lock(*locks)
            await self.apply_changes(tx, owner, records, is_long=is_long)

        await self._store.write(apply_all)

    def list_lock_names(self, owner: Tenant, records: Sequence[CompareAndSet]) -> frozenset[str]:
        """Lists the locks to hold while facts are merged.

        Row locks do not suffice: two transactions may be about to insert the same row.
        """
        return frozenset(chain.from_iterable(_iterate_lock_names(owner, each) for each in records))

    async def apply_changes(
        self, tx: Transaction, owner: Tenant, records: Sequence[CompareAndSet], *, is_long: bool
    ) -> None:
        """Merges facts in a transaction that holds ``list_lock_names``; raises Conflict.

        ``is_long`` is the result of ``has_long_changes``.
        """
        slices = iterate_chunks(
            chain.from_iterable(record.members for record in records), SLICE_SIZE
        )
        # ``next`` decompresses a slice of a long list of records.
        while (
            some_records := await tx.compute(True, next, slices, ())
            if is_long
            else next(slices, ())
        ):
            is_slice_long = is_long and has_long_changes(some_records)
            records_by_kind: dict[str, list[CompareAndSet]] = {}
            for record in some_records:
                records_by_kind.setdefault(record.kind, []).append(record)
            for kind, records_of_kind in records_by_kind.items():
                if kind == DRAFT_PAYMENTS:
                    await self._change_draft_payments(tx, owner, records_of_kind)
                else:
                    await self._merge_facts_of_kind(tx, owner, kind, records_of_kind, is_slice_long)

    async def _merge_facts_of_kind(
        self,
        tx: Transaction,
        owner: Tenant,
        kind: str,
        records: Sequence[CompareAndSet],
        is_long: bool,
    ) -> None:
        table, tenant, now = STATE_TABLES[kind], owner._asdict(), self._store.clock()
        keys = {record.id: {**tenant, "id": record.id} for record in records}
        # Of an object that was just created, nothing is stored yet, nearly always.
        if len(keys) == 1 and (id_ := records[0].id) in records[0].created_ids:
            facts = compute_new_facts({}, {}, records)[id_]
            stored = await self._encode_row(tx, owner, kind, id_, facts)
            if await tx.execute(table.insert, {**keys[id_], **stored, "updated_at": now}):
                return
        replaced_ids = keys.keys() - {
            record.id for record in records if not is_full_replacement(record)
        }
        old_facts, texts = await self._load_old_facts(tx, owner, kind, keys, replaced_ids)
        if is_long or (texts and max(map(len, texts.values())) > _MAX_INLINE_LENGTH):
            new_facts = await tx.compute(True, compute_new_facts, old_facts, texts, records)
        else:
            new_facts = compute_new_facts(old_facts, texts, records)
        upserts, deletions = list[Parameters](), list[Parameters]()
        for id_, key in keys.items():
            if facts := new_facts[id_]:
                stored = await self._encode_row(tx, owner, kind, id_, facts)
                upserts.append({**key, **stored, "updated_at": now})
            else:
                deletions.append(key)
        if upserts:
            await tx.execute(table.upsert, *upserts)
        if deletions:
            await tx.execute(table.delete, *deletions)

    async def _load_old_facts(
        self,
        tx: Transaction,
        owner: Tenant,
        kind: str,
        keys: Mapping[str, Parameters],
        replaced_ids: AbstractSet[str],
    ) -> tuple[dict[str, dict[str, Any]], dict[str, StoredText]]:
        """Loads the facts that remain, those with columns and the others, by id.

        Chunks are never changed: those of the old facts are deleted, and so are replaced rows.
        """
        table = STATE_TABLES[kind]
        old_facts, texts, holders = dict[str, Any](), dict[str, StoredText](), list[str]()
        for row in await tx.fetch(table.select_one, *keys.values()):
            id_, columns, others = (
                row[0],
                table.decode_columns(row),
                table.select_stored_others(row),
            )
            if others is not None and chunks.is_chunked_text_head(others):
                holders.append(_build_lock_name(*owner, kind, id_))
            if id_ not in replaced_ids:
                old_facts[id_] = columns
                if others is not None:
                    texts[id_] = await self._decrypt_others(tx, owner, kind, id_, others)
            elif PAYMENT_COUNT in columns:
                await tx.leave_event_loop()
                await self._draft_payments.delete_all(tx, owner, id_)
        if holders:
            await tx.leave_event_loop()
            await chunks.delete_chunks(tx, *holders)
        return old_facts, texts

    async def _change_draft_payments(
        self, tx: Transaction, owner: Tenant, records: Sequence[CompareAndSet]
    ) -> None:
        """Changes rows of payments, and the number of payments."""
        entries_by_batch: dict[str, dict[str, Any]] = {}
        for record in records:
            entries_by_batch.setdefault(record.id, {}).update(record.facts)
        for batch_id, entries in entries_by_batch.items():
            count = await self._count_draft_payments(tx, owner, batch_id)
            count += await self._draft_payments.change(tx, owner, batch_id, entries)
            columns = await self._encode_row(
                tx, owner, "payments", batch_id, {PAYMENT_COUNT: count}
            )
            key = {**owner._asdict(), "id": batch_id, "updated_at": self._store.clock()}
            await tx.execute(STATE_TABLES["payments"].upsert, {**key, **columns})

    async def _count_draft_payments(self, tx: Transaction, owner: Tenant, batch_id: str) -> int:
        """Returns the number of rows; moves payments into rows that an older version has stored."""
        table = STATE_TABLES["payments"]
        rows = await tx.fetch(table.select_one, {**owner._asdict(), "id": batch_id})
        if not rows or (stored := table.select_stored_others(rows[0])) is None:
            return table.decode_columns(rows[0])[PAYMENT_COUNT] if rows else 0
        text = await self._decrypt_others(tx, owner, "payments", batch_id, stored)
        entries = (await tx.compute(True, stored_json.decode_value, text))["entries"]
        # Deletes the text.
        removal = CompareAndSet("payments", batch_id, {"entries": None})
        await self._merge_facts_of_kind(tx, owner, "payments", [removal], False)
        count, names = 0, set[str]()
        for some_entries in iterate_slices(entries):
            entries_by_name: dict[str, Any] = {}
            for entry in some_entries:
                # A service may have shown two payments with one id.
                name = str(entry["id"])
                name = name if name not in names else f"{name} {len(names)}"
                names.add(name)
                entries_by_name[name] = entry
            count += await self._draft_payments.change(tx, owner, batch_id, entries_by_name)
        return count

    async def _encode_row(
        self, tx: Transaction, owner: Tenant, kind: str, id_: str, facts: Mapping[str, Any]
    ) -> Parameters:
        """Returns the columns to store; stores the chunks of long facts."""
        table = STATE_TABLES[kind]
        columns, others = table.encode_columns(facts), table.select_other_facts(facts)
        if table.others is None:
            return columns
        if not others:
            return {**columns, table.others: None}
        if isinstance(others, EncodedFacts):
            text = others.text
        else:
            text = await tx.compute(json_codec.has_rows(others), stored_json.encode_value, others)
        if not table.is_encrypted:
            return {**columns, table.others: stored_json.decompress_text(text)}
        keys, context = self._store.encryption, _build_facts_encryption_context(owner, kind)
        if isinstance(text, str):
            return {**columns, table.others: keys.encrypt(text, context)}
        holder = _build_lock_name(*owner, kind, id_)
        sealed, insert_chunks = chunks.encrypt_long_text(keys, text, context, holder)
        await insert_chunks(tx)
        return {**columns, table.others: sealed}

    async def _decrypt_others(
        self, tx: Transaction, owner: Tenant, kind: str, id_: str, stored: str
    ) -> StoredText:
        """Decrypts the facts without a column; raises ChunkMissing."""
        if not STATE_TABLES[kind].is_encrypted:
            return stored
        keys, holder = self._store.encryption, _build_lock_name(*owner, kind, id_)
        return await chunks.load_and_decrypt_text(
            tx, keys, stored, _build_facts_encryption_context(owner, kind), holder
        )

    async def _decode_facts_by_id(
        self, owner: Tenant, kind: str, rows: Sequence[tuple[Any, ...]]
    ) -> dict[str, dict[str, Any]]:
        """Decodes selected rows, and loads the facts that are stored in chunks."""
        others = [STATE_TABLES[kind].select_stored_others(row) or "" for row in rows]
        is_long = len(rows) > FEW or any(len(stored) > _MAX_INLINE_LENGTH for stored in others)
        facts_by_id = await run_in_thread_if(
            is_long, self._decode_unchunked_facts_by_id, owner, kind, rows
        )
        for row, stored in zip(rows, others, strict=True):
            if chunks.is_chunked_text_head(stored) or PAYMENT_COUNT in facts_by_id[row[0]]:
                text, columns = await self._store.read(
                    partial(self._load_chunked_facts, owner=owner, kind=kind, id_=row[0])
                )
                is_long = len(text) > _MAX_INLINE_LENGTH
                decoded = await run_in_thread_if(is_long, stored_json.decode_value, text)
                facts_by_id[row[0]] = {**decoded, **columns}
        return facts_by_id

    def _decode_unchunked_facts_by_id(
        self, owner: Tenant, kind: str, rows: Sequence[tuple[Any, ...]]
    ) -> dict[str, dict[str, Any]]:
        """Decodes the rows; of those whose other facts are in chunks, the columns only."""
        table = STATE_TABLES[kind]
        context = _build_facts_encryption_context(owner, kind)
        facts_by_id: dict[str, dict[str, Any]] = {}
        for row in rows:
            facts, stored = table.decode_columns(row), table.select_stored_others(row)
            if stored and not chunks.is_chunked_text_head(stored):
                if table.is_encrypted:
                    stored = self._store.encryption.decrypt(stored, context)
                facts = {**stored_json.decode_value(stored), **facts}
            facts_by_id[row[0]] = facts
        return facts_by_id

    async def _load_chunked_facts(
        self, tx: Transaction, owner: Tenant, kind: str, id_: str
    ) -> tuple[StoredText, Mapping[str, Any]]:
        """Loads the current facts of an object: those in chunks, and those in columns or rows.

        They may have been replaced since their head, or number, was read, so one without its chunks
        or rows is read again.
        """
        table, key, seen = STATE_TABLES[kind], {**owner._asdict(), "id": id_}, None
        while rows := await tx.fetch(table.select_one, key):
            stored, columns = table.select_stored_others(rows[0]), table.decode_columns(rows[0])
            count = columns.pop(PAYMENT_COUNT, None)
            try:
                if count is not None:
                    entries = await self._draft_payments.load(tx, owner, id_, count)
                    return "{}", {**columns, "entries": entries}
                if stored is None:
                    return "{}", columns
                return await self._decrypt_others(tx, owner, kind, id_, stored), columns
            except chunks.ChunkMissing:
                # The head is still the same, so its chunks are really missing.
                if (stored, count) == seen:
                    raise
                seen = stored, count
        return "{}", {}


def _iterate_lock_names(owner: Tenant, record: CompareAndSet) -> Iterator[str]:
    is_pooled = record.kind == _POOLED_LOCK_KIND
    lock_id = str(crc32(record.id.encode()) % _LOCK_POOL_SIZE) if is_pooled else record.id
    yield _build_lock_name(*owner, record.kind, lock_id)
    if not isinstance(record.linked, LazySequence):
        for linked_record in record.linked:
            yield from _iterate_lock_names(owner, linked_record)
    else:
        yield from (
            _build_lock_name(*owner, _POOLED_LOCK_KIND, str(room))
            for room in range(_LOCK_POOL_SIZE)
        )


_POOLED_LOCK_KIND, _LOCK_POOL_SIZE = "alias", 64
"""The kind of which one change may concern very many, as a draft has one for each payment; and the
number of locks that they share, because a database has room for some thousands."""


def _build_facts_encryption_context(owner: Tenant, kind: str) -> EncryptionContext:
    # The first name of the table. It is authenticated with every value, so it can never change.
    return EncryptionContext("remembered", owner.merchant, owner.environment, f"facts of a {kind}")


def _build_lock_name(*named: str) -> str:
    """Builds the name of a lock, which is also the holder of chunks and can never change.

    A JSON array is unambiguous: joined parts could be split at other positions.
    """
    return f'["remembered",{",".join(map(encode_basestring_ascii, named))}]'
