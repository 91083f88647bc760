"""Differences between the answers of two services, counted by key, operation and place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Table, delete, select

from gateway.storage.audit_log import record_audit_event
from gateway.storage.database import Transaction
from gateway.storage.sql import Statement, build_upsert_statement
from gateway.storage.store import Store
from gateway.storage.tables import comparisons, found_differences
from gateway.storage.tenants import Tenant

TALLIES_RESET = "forgot what was compared"

DifferencePlace = tuple[str, str]
"""The kind of a difference, and its path in the body, without list indexes."""

_SUMS = ("compared", "different", "failed", "dropped")
_EXAMPLE_COLUMNS = ("request_id", "control", "candidate")


@dataclass(frozen=True, slots=True)
class TallyKey:
    tenant: Tenant
    key: str
    operation: str


@dataclass(frozen=True, slots=True)
class DifferenceExample:
    """The request of an answer with a difference, and the masked values of both services."""

    request_id: str = ""
    control: str = ""
    candidate: str = ""


@dataclass(slots=True)
class Tally:
    """Counters of compared answers; ``places`` counts the answers with each difference.

    ``examples`` has the newest of them.
    """

    compared: int = 0
    different: int = 0
    failed: int = 0
    dropped: int = 0
    places: dict[DifferencePlace, int] = field(default_factory=dict)
    first_at: datetime | None = None
    last_at: datetime | None = None
    examples: dict[DifferencePlace, DifferenceExample] = field(default_factory=dict)


async def add_to_comparison_tallies(store: Store, tallies: Mapping[TallyKey, Tally]) -> None:
    """Adds to the stored counters in one transaction; raises StoreUnavailable."""
    if not tallies:
        return
    rows = [_build_tally_row(key, tally) for key, tally in tallies.items()]
    places = [row for key, tally in tallies.items() for row in _build_difference_rows(key, tally)]

    async def upsert_rows(tx: Transaction) -> None:
        await _upsert(tx, comparisons, _UPSERT_TALLIES, rows)
        await _upsert(tx, found_differences, _UPSERT_DIFFERENCES, places)

    await store.write(upsert_rows)


_UPSERT_TALLIES = build_upsert_statement(
    comparisons, summed=_SUMS, greatest=("last_at",), inserted=("first_at",)
)
_UPSERT_DIFFERENCES = build_upsert_statement(
    found_differences,
    _EXAMPLE_COLUMNS,
    summed=("answers",),
    greatest=("last_at",),
    inserted=("first_at",),
)


async def _upsert(
    tx: Transaction, table: Table, statement: Statement, rows: list[dict[str, Any]]
) -> None:
    keys = [column.name for column in table.primary_key]
    # Always in the same order: two instances that update the same rows must not deadlock.
    rows = sorted(rows, key=lambda row: [row[name] for name in keys])
    if rows:
        await tx.execute(statement, *rows)


def _build_tally_key_columns(key: TallyKey) -> dict[str, Any]:
    return {**key.tenant._asdict(), "key": key.key, "operation": key.operation}


def _build_tally_row(key: TallyKey, tally: Tally) -> dict[str, Any]:
    columns = (*_SUMS, "first_at", "last_at")
    return {**_build_tally_key_columns(key), **{name: getattr(tally, name) for name in columns}}


def _build_difference_rows(key: TallyKey, tally: Tally) -> list[dict[str, Any]]:
    times = {"first_at": tally.first_at, "last_at": tally.last_at}
    return [
        {
            **_build_tally_key_columns(key),
            "kind": kind,
            "place": place,
            "answers": answers,
            **asdict(tally.examples.get((kind, place), DifferenceExample())),
            **times,
        }
        for (kind, place), answers in tally.places.items()
    ]


async def load_comparison_tallies_by_key(store: Store) -> dict[TallyKey, Tally]:
    """Loads every tally, by merchant, environment, key and operation; raises StoreUnavailable."""
    keys = list(comparisons.primary_key)
    tallies: dict[TallyKey, Tally] = {}

    async def load(tx: Transaction) -> tuple[list[Any], list[Any]]:
        tally_rows = await tx.fetch(select(comparisons).order_by(*keys))
        return tally_rows, await tx.fetch(select(found_differences))

    tally_rows, difference_rows = await store.read(load)
    for row in tally_rows:
        values = {name: getattr(row, name) for name in (*_SUMS, "first_at", "last_at")}
        tallies[_parse_tally_key(row)] = Tally(**values)
    for row in difference_rows:
        # The two queries are no snapshot: a difference may be newer than the tallies.
        if tally := tallies.get(_parse_tally_key(row)):
            tally.places[row.kind, row.place] = row.answers
            example = DifferenceExample(*(getattr(row, name) for name in _EXAMPLE_COLUMNS))
            tally.examples[row.kind, row.place] = example
    return tallies


def _parse_tally_key(row: Any) -> TallyKey:
    return TallyKey(Tenant(row.merchant, row.environment), row.key, row.operation)


async def delete_comparison_tallies_of_key(store: Store, tenant: Tenant, key: str) -> None:
    """Deletes the tallies of a key, so that counting starts again from zero."""

    async def delete_rows(tx: Transaction) -> None:
        columns = {**tenant._asdict(), "key": key}
        await tx.execute(delete(comparisons).filter_by(**columns))
        await tx.execute(delete(found_differences).filter_by(**columns))
        await record_audit_event(store, tx, f"{TALLIES_RESET} of key {key}", tenant)

    await store.write(delete_rows)
