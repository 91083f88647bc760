"""Stores object state: facts of objects that the current interface has no place for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import chain
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any
from zlib import crc32

import simplejson
from sqlalchemy import select, text

from gateway.payloads import json_codec, stored_json
from gateway.payloads.stored_json import StoredText
from gateway.payloads.worker_thread import run_in_thread, run_in_thread_if
from gateway.storage import chunks
from gateway.storage.database import FEW, Transaction
from gateway.storage.encryption import EncryptionContext
from gateway.storage.id_rows import load_legacy_ids
from gateway.storage.sql import Parameters, Statement, build_upsert_statement
from gateway.storage.state_tables import FIND_SUPERSEDED, find_state_table
from gateway.storage.tables import IS_SUPERSEDED, capabilities, id_redirects
from gateway.storage.tenants import Tenant
from mappings.effects import CompareAndSet
from mappings.failures import Conflict
from mappings.lazy_sequences import SLICE_SIZE, LazySequence, iterate_chunks

if TYPE_CHECKING:
    from gateway.storage.store import Store


_MAX_INLINE_LENGTH = 16 * 1024
"""Length of facts, in characters, above which they are decoded in a worker thread."""

ENCRYPTED_KINDS = frozenset({"batch", "payments"})
"""Kinds whose facts are encrypted: people write descriptions and memos, about people."""


_SINGLE_FACT_KINDS = {"payments": "entries"}
"""Kinds with one fact, which is replaced without loading the old one, as that may be long."""

_UPSERT_CAPABILITY = build_upsert_statement(
    capabilities, ("environment", "name"), ("value", "learned_at")
)


class ObjectStateStore:
    """The facts of objects, by tenant, kind and id; every method raises StoreUnavailable.

    Values are JSON; decimals stay exact, and are never floats.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def load(self, owner: Tenant, kind: str, id: str) -> dict[str, Any]:  # noqa: A002 - the documents' word
        """Loads the facts of an object; an empty dict if it has none."""
        row = {**owner._asdict(), "kind": kind, "id": id}
        find = find_state_table(kind).find
        rows = self._fetch_small_facts_now(find, row)
        if rows is None:
            rows = await self._store.read(lambda tx: tx.fetch(find, row), is_brief=True)
        return (await self._decode_facts_by_id(owner, kind, rows))[id] if rows else {}

    def _fetch_small_facts_now(
        self, statement: Statement, values: Parameters
    ) -> Sequence[Any] | None:
        """Fetches rows without waiting; None if that is impossible, or if facts may be long."""
        if values["kind"] in ENCRYPTED_KINDS:
            return None
        return self._store.database.fetch_now(statement, values)

    async def is_superseded_for_any_tenant(self, environment: str, batch_id: str) -> bool:
        """Whether any merchant of an environment has a superseded batch of this id.

        It serves requests whose tenant is unknown.
        """
        query = select(id_redirects.c.id).where(
            id_redirects.c.environment == environment,
            id_redirects.c.id == batch_id,
            text(IS_SUPERSEDED),
        )
        return bool(await self._store.read(lambda tx: tx.fetch(query)))

    async def load_facts_by_id(
        self, owner: Tenant, kind: str, among: Sequence[str] | None = None
    ) -> dict[str, dict[str, Any]]:
        """Loads the facts of a kind's objects, by id: of all objects, or of those in ``among``."""
        values, table = {**owner._asdict(), "kind": kind}, find_state_table(kind)
        if among is None:
            rows = self._fetch_small_facts_now(table.find_first, values)
            if rows is None or len(rows) > FEW:
                rows = await self._store.read(lambda tx: tx.fetch(table.find_all, values))
        elif ids := sorted(set(among)):
            is_brief = len(ids) <= FEW
            rows = await self._store.read(
                lambda tx: tx.fetch(table.find_some, {**values, "ids": ids}), is_brief=is_brief
            )
        else:
            return {}
        return await self._decode_facts_by_id(owner, kind, rows)

    async def load_superseded_batch_aliases(self, owner: Tenant) -> dict[str, dict[str, Any]]:
        """Loads the aliases of superseded batches, with an index: most aliases are of payments."""
        rows = await self._store.read(lambda tx: tx.fetch(FIND_SUPERSEDED, owner._asdict()))
        return await self._decode_facts_by_id(owner, "alias", rows)

    async def load_legacy_ids(self, owner: Tenant, among: Iterable[str]) -> dict[str, str]:
        """Loads legacy ids by current id, for the objects that have one."""
        return await load_legacy_ids(self._store, owner, among)

    async def compare_and_set(
        self,
        owner: Tenant,
        kind: str,
        id: str,  # noqa: A002
        facts: Mapping[str, Any],
        find: Mapping[str, Any] | None = None,
    ) -> None:
        """Merges facts into those of an object.

        None deletes a fact, and the object with its last one. A fact is replaced as a whole: its
        content is not merged. Raises Conflict if the stored facts differ from ``find``, in which
        None stands for a missing fact.
        """
        await self.compare_and_set_all(owner, [CompareAndSet(kind, id, facts, find or {})])

    async def compare_and_set_all(self, owner: Tenant, records: Sequence[CompareAndSet]) -> None:
        """Changes the facts of several objects in one transaction; raises Conflict."""
        locks = self.list_lock_names(owner, records)
        records = await encode_long_changes(records)

        async def apply_all(tx: Transaction) -> None:
            await tx.lock(*locks)
            await self.apply_changes(tx, owner, records)

        await self._store.write(apply_all)

    def list_lock_names(self, owner: Tenant, records: Sequence[CompareAndSet]) -> frozenset[str]:
        """Lists the locks to hold while facts are merged.

        Row locks do not suffice: two transactions may be about to insert the same row.
        """
        return frozenset(chain.from_iterable(_iterate_lock_names(owner, each) for each in records))

    async def apply_changes(
        self, tx: Transaction, owner: Tenant, records: Sequence[CompareAndSet]
    ) -> None:
        """Merges facts in a transaction that holds ``list_lock_names``; raises Conflict."""
        slices = iterate_chunks(
            chain.from_iterable(record.members for record in records), SLICE_SIZE
        )
        is_long = has_long_changes(records)
        # ``next`` decompresses a slice of a long list of records.
        while some_records := await tx.compute(is_long, next, slices, ()):
            await self._merge_facts_slice(tx, owner, some_records)

    async def _merge_facts_slice(
        self, tx: Transaction, owner: Tenant, records: Sequence[CompareAndSet]
    ) -> None:
        rows_by_kind: dict[str, dict[str, Parameters]] = {}
        for record in records:
            rows_by_kind.setdefault(record.kind, {})[record.id] = {
                **owner._asdict(),
                "kind": record.kind,
                "id": record.id,
            }
        stored = await self._load_facts_to_merge(tx, owner, records, rows_by_kind)
        is_long = has_long_changes(records) or any(
            len(facts) > _MAX_INLINE_LENGTH for facts in stored.values()
        )
        new_facts = await tx.compute(is_long, _compute_new_facts, stored, records)
        now = self._store.clock()
        for kind, rows in rows_by_kind.items():
            table = find_state_table(kind)
            upserts, deletions = list[Parameters](), list[Parameters]()
            columns: Parameters
            for id_, row in rows.items():
                if facts := new_facts[kind, id_]:
                    if table.columns_by_fact:
                        columns = table.build_columns(facts)
                    else:
                        columns = {"facts": await self._encode_facts(tx, owner, kind, id_, facts)}
                    upserts.append({**row, **columns, "updated_at": now})
                else:
                    deletions.append(row)
            for statement, parameter_sets in ((table.upsert, upserts), (table.delete, deletions)):
                if parameter_sets:
                    await tx.execute(statement, *parameter_sets)

    async def _load_facts_to_merge(
        self,
        tx: Transaction,
        owner: Tenant,
        records: Sequence[CompareAndSet],
        rows_by_kind: Mapping[str, Mapping[str, Parameters]],
    ) -> dict[tuple[str, str], StoredText | dict[str, Any]]:
        """Loads the stored facts, or their text, unless all are replaced; deletes their chunks."""
        merged_keys = {
            (record.kind, record.id) for record in records if not _is_full_replacement(record)
        }
        stored: dict[tuple[str, str], StoredText | dict[str, Any]] = {}
        holders: list[str] = []
        for kind, rows in rows_by_kind.items():
            table = find_state_table(kind)
            for id_, *values in await tx.fetch(table.find, *rows.values()):
                if table.columns_by_fact:
                    stored[kind, id_] = table.build_facts(values)
                    continue
                if (kind, id_) in merged_keys:
                    text = await self._decrypt_facts_text(tx, owner, kind, id_, values[0])
                    stored[kind, id_] = text
                if chunks.is_chunked_text_head(values[0]):
                    holders.append(_build_lock_name(*owner, kind, id_))
        # Chunks are never changed: those of the old facts are deleted, new ones are inserted.
        if holders:
            await chunks.delete_chunks(tx, *holders)
        return stored

    async def _encode_facts(
        self, tx: Transaction, owner: Tenant, kind: str, id_: str, facts: Mapping[str, Any]
    ) -> str:
        """Returns the value to store in the row; stores the chunks of long facts."""
        if kind not in ENCRYPTED_KINDS:
            return json_codec.dumps_trusted(facts).decode()
        if isinstance(facts, _EncodedFacts):
            text = facts.text
        else:
            text = await tx.compute(json_codec.has_rows(facts), stored_json.encode_value, facts)
        keys, holder = self._store.encryption, _build_lock_name(*owner, kind, id_)
        return await chunks.encrypt_and_insert_chunks(
            tx, keys, text, _build_facts_encryption_context(owner, kind), holder
        )

    async def _decrypt_facts_text(
        self, tx: Transaction, owner: Tenant, kind: str, id_: str, facts: str
    ) -> StoredText:
        """Decrypts the facts of a row; raises ChunkMissing."""
        if kind not in ENCRYPTED_KINDS:
            return facts
        keys, holder = self._store.encryption, _build_lock_name(*owner, kind, id_)
        return await chunks.load_and_decrypt_text(
            tx, keys, facts, _build_facts_encryption_context(owner, kind), holder
        )

    async def _decode_facts_by_id(
        self, owner: Tenant, kind: str, rows: Sequence[tuple[Any, ...]]
    ) -> dict[str, dict[str, Any]]:
        """Decodes rows of id and stored facts, and loads those that are stored in chunks."""
        table = find_state_table(kind)
        if table.columns_by_fact:
            return await run_in_thread_if(
                len(rows) > FEW,
                lambda: {id_: table.build_facts(values) for id_, *values in rows},
            )
        chunked_ids = [id_ for id_, facts in rows if chunks.is_chunked_text_head(facts)]
        is_long = len(rows) > FEW or any(len(facts) > _MAX_INLINE_LENGTH for _id, facts in rows)
        facts_by_id = await run_in_thread_if(
            is_long, self._decode_unchunked_facts_by_id, owner, kind, rows
        )
        for id_ in chunked_ids:
            text = await self._store.read(
                partial(self._load_chunked_facts, owner=owner, kind=kind, id_=id_)
            )
            facts_by_id[id_] = await run_in_thread(stored_json.decode_value, text)
        return facts_by_id

    def _decode_unchunked_facts_by_id(
        self, owner: Tenant, kind: str, rows: Sequence[tuple[Any, ...]]
    ) -> dict[str, dict[str, Any]]:
        """Decodes the rows whose facts are not in chunks."""
        whole = ((id_, facts) for id_, facts in rows if not chunks.is_chunked_text_head(facts))
        if kind in ENCRYPTED_KINDS:
            return {id_: self._decrypt_facts(owner, kind, facts) for id_, facts in whole}
        return {id_: stored_json.decode_value(facts) for id_, facts in whole}

    def _decrypt_facts(self, owner: Tenant, kind: str, facts: str) -> dict[str, Any]:
        text = self._store.encryption.decrypt(facts, _build_facts_encryption_context(owner, kind))
        decrypted: dict[str, Any] = stored_json.decode_value(text)
        return decrypted

    async def _load_chunked_facts(
        self, tx: Transaction, owner: Tenant, kind: str, id_: str
    ) -> StoredText:
        """Loads the current facts of an object that are stored in chunks.

        They may have been replaced since their head was read, so a head without chunks is read
        again.
        """
        row, seen = {**owner._asdict(), "kind": kind, "id": id_}, ""
        while rows := await tx.fetch(find_state_table(kind).find, row):
            facts = rows[0][1]
            try:
                return await self._decrypt_facts_text(tx, owner, kind, id_, facts)
            except chunks.ChunkMissing:
                # The head is still the same, so its chunks are really missing.
                if facts == seen:
                    raise
                seen = facts
        return "{}"

    async def load_capabilities(self, environment: str) -> dict[str, tuple[Any, datetime]]:
        """Loads the learned capabilities of an environment's service: value and time, by name."""
        query = select(capabilities).where(capabilities.c.environment == environment)
        rows = await self._store.read(lambda tx: tx.fetch(query))
        return {row.name: (json_codec.loads_trusted(row.value), row.learned_at) for row in rows}

    async def save_capability(self, environment: str, name: str, value: Any) -> None:
        """Saves a capability of an environment's service, in place of an earlier value."""
        row = {
            "environment": environment,
            "name": name,
            "value": _dump_json(value),
            "learned_at": self._store.clock(),
        }
        await self._store.write(lambda tx: tx.execute(_UPSERT_CAPABILITY, row))


def _compute_new_facts(
    stored: Mapping[tuple[str, str], StoredText | dict[str, Any]],
    records: Sequence[CompareAndSet],
) -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the new facts of each object, from the stored ones or their text; raises Conflict."""
    facts_by_key: dict[tuple[str, str], dict[str, Any]] = {
        key: facts if isinstance(facts, dict) else stored_json.decode_value(facts)
        for key, facts in stored.items()
    }
    for record in records:
        facts = facts_by_key.get((record.kind, record.id), {})
        if any(facts.get(name) != fact for name, fact in record.expected.items()):
            raise Conflict(record.kind)
        facts_by_key[record.kind, record.id] = _merge_facts(facts, record)
    return facts_by_key


def has_long_changes(records: Sequence[CompareAndSet]) -> bool:
    """Whether encoding and encrypting the changes takes long enough for a worker thread."""
    return any(
        json_codec.has_rows(record.facts)
        or isinstance(record.linked, LazySequence)
        or has_long_changes(record.linked)
        for record in records
    )


class _EncodedFacts(dict[str, Any]):
    """Facts, and the text that they are encoded as."""

    text: StoredText


async def encode_long_changes(records: Sequence[CompareAndSet]) -> Sequence[CompareAndSet]:
    """Encodes long facts before the transaction, because others wait for its end."""
    return await run_in_thread(_encode_changes, records) if has_long_changes(records) else records


def _encode_changes(records: Sequence[CompareAndSet]) -> Sequence[CompareAndSet]:
    return [
        replace(record, facts=_encode_facts_if_long(record), linked=_encode_linked_changes(record))
        for record in records
    ]


def _encode_linked_changes(record: CompareAndSet) -> Sequence[CompareAndSet]:
    linked = record.linked
    return linked if isinstance(linked, LazySequence) else _encode_changes(linked)


def _encode_facts_if_long(record: CompareAndSet) -> Mapping[str, Any]:
    is_encrypted = record.kind in ENCRYPTED_KINDS
    if not (is_encrypted and _is_full_replacement(record) and json_codec.has_rows(record.facts)):
        return record.facts
    encoded = _EncodedFacts(_merge_facts({}, record))
    encoded.text = stored_json.encode_value(encoded)
    return encoded


def _merge_facts(facts: Mapping[str, Any], record: CompareAndSet) -> dict[str, Any]:
    """Merges the facts of a change into those of its object."""
    if not facts and isinstance(record.facts, _EncodedFacts):
        return record.facts
    both = {**facts, **record.facts}
    return {name: fact for name, fact in both.items() if fact is not None}


def has_preconditions(record: CompareAndSet) -> bool:
    """Whether the change, or a linked one, depends on stored facts and may conflict."""
    is_many = isinstance(record.linked, LazySequence)
    return bool(record.expected) or (not is_many and any(map(has_preconditions, record.linked)))


def _iterate_lock_names(owner: Tenant, record: CompareAndSet) -> Iterator[str]:
    yield _build_lock_name(*owner, record.kind, _choose_object_lock_id(record))
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


def _choose_object_lock_id(record: CompareAndSet) -> str:
    if record.kind != _POOLED_LOCK_KIND:
        return record.id
    return str(crc32(record.id.encode()) % _LOCK_POOL_SIZE)


def _is_full_replacement(record: CompareAndSet) -> bool:
    """Whether nothing of the stored facts remains, so that they need not be loaded."""
    return not record.expected and _SINGLE_FACT_KINDS.get(record.kind) in record.facts


def _build_facts_encryption_context(owner: Tenant, kind: str) -> EncryptionContext:
    # The first name of the table. It is authenticated with every value, so it can never change.
    return EncryptionContext("remembered", owner.merchant, owner.environment, f"facts of a {kind}")


def _build_lock_name(*named: str) -> str:
    """Builds the name of a lock, which is also the holder of chunks and can never change.

    A JSON array is unambiguous: joined parts could be split at other positions.
    """
    return f'["remembered",{",".join(map(encode_basestring_ascii, named))}]'


def _dump_json(value: Any) -> str:
    return simplejson.dumps(value, use_decimal=True, allow_nan=False, separators=(",", ":"))
