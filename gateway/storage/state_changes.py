"""Computes changes of object state, and encodes long ones before their transaction."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from gateway.payloads import json_codec, stored_json
from gateway.payloads.stored_json import StoredText
from gateway.payloads.worker_thread import run_in_thread
from mappings.effects import CompareAndSet
from mappings.failures import Conflict
from mappings.lazy_sequences import LazySequence

_SINGLE_FACT_KINDS = {"payments": "entries"}
"""Kinds with one fact, which is replaced without loading the old one, as that may be long."""


def compute_new_facts(
    columns: Mapping[str, Mapping[str, Any]],
    texts: Mapping[str, StoredText],
    records: Sequence[CompareAndSet],
) -> dict[str, dict[str, Any]]:
    """Returns the new facts by id, from the columns and texts of the old; raises Conflict."""
    facts_by_id: dict[str, dict[str, Any]] = {
        id_: {**stored_json.decode_value(texts.get(id_, "{}")), **facts}
        for id_, facts in columns.items()
    }
    for record in records:
        facts = facts_by_id.get(record.id, {})
        if record.expected and any(
            facts.get(name) != fact for name, fact in record.expected.items()
        ):
            raise Conflict(record.kind)
        facts_by_id[record.id] = _merge_facts(facts, record)
    return facts_by_id


def has_long_changes(records: Sequence[CompareAndSet]) -> bool:
    """Whether encoding and encrypting the changes takes long enough for a worker thread."""
    for record in records:
        if (
            json_codec.has_rows(record.facts)
            or isinstance(record.linked, LazySequence)
            or (record.linked and has_long_changes(record.linked))
        ):
            return True
    return False


class EncodedFacts(dict[str, Any]):
    """Facts, and the text that they are encoded as."""

    text: StoredText


async def encode_long_changes(records: Sequence[CompareAndSet]) -> Sequence[CompareAndSet]:
    """Encodes long facts before the transaction, because others wait for its end."""
    return await run_in_thread(_encode_changes, records)


def _encode_changes(records: Sequence[CompareAndSet]) -> Sequence[CompareAndSet]:
    return [
        structs.replace(
            record, facts=_encode_facts_if_long(record), linked=_encode_linked_changes(record)
        )
        for record in records
    ]


def _encode_linked_changes(record: CompareAndSet) -> Sequence[CompareAndSet]:
    linked = record.linked
    return linked if isinstance(linked, LazySequence) else _encode_changes(linked)


def _encode_facts_if_long(record: CompareAndSet) -> Mapping[str, Any]:
    if not (is_full_replacement(record) and json_codec.has_rows(record.facts)):
        return record.facts
    encoded = EncodedFacts(_merge_facts({}, record))
    encoded.text = stored_json.encode_value(encoded)
    return encoded


def _merge_facts(facts: Mapping[str, Any], record: CompareAndSet) -> dict[str, Any]:
    """Merges the facts of a change into those of its object."""
    if not facts and isinstance(record.facts, EncodedFacts):
        return record.facts
    both = {**facts, **record.facts}
    return {name: fact for name, fact in both.items() if fact is not None}


def has_preconditions(record: CompareAndSet) -> bool:
    """Whether the change, or a linked one, depends on stored facts and may conflict."""
    is_many = isinstance(record.linked, LazySequence)
    return bool(record.expected) or (not is_many and any(map(has_preconditions, record.linked)))


def is_full_replacement(record: CompareAndSet) -> bool:
    """Whether nothing of the stored facts remains, so that they need not be loaded."""
    return not record.expected and _SINGLE_FACT_KINDS.get(record.kind) in record.facts
