"""Differences between the answers of two services, counted by key, operation and place."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import delete, select

from gateway.storage.audit_log import record_audit_event
from gateway.storage.database import Transaction
from gateway.storage.sql import build_upsert_statement
from gateway.storage.store import Store
from gateway.storage.tables import comparisons, found_differences
from gateway.storage.tenants import Tenant

TALLIES_RESET = "forgot what was compared"

DifferencePlace = tuple[str, str]
"""The kind of a difference, and its path in the body, without list indexes."""

TALLY_COUNTS = ("compared", "different", "failed", "dropped")
_EXAMPLE_COLUMNS = ("request_id", "control", "candidate")


class TallyKey(NamedTuple):
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
    tally_rows, difference_rows = list[dict[str, Any]](), list[dict[str, Any]]()
    # Always in the same order: two instances that update the same rows must not deadlock.
    for key in sorted(tallies):
        tally, columns = tallies[key], {**key.tenant._asdict(), **key._asdict()}
        del columns["tenant"]
        columns |= {"first_at": tally.first_at, "last_at": tally.last_at}
        tally_rows.append(columns | {name: getattr(tally, name) for name in TALLY_COUNTS})
        for kind, place in sorted(tally.places):
            counted = {"kind": kind, "place": place, "answers": tally.places[kind, place]}
            example = tally.examples.get((kind, place), DifferenceExample())
            difference_rows.append(columns | counted | asdict(example))

    async def upsert_rows(tx: Transaction) -> None:
        for statement, rows in (
            (_UPSERT_TALLIES, tally_rows),
            (_UPSERT_DIFFERENCES, difference_rows),
        ):
            if rows:
                await tx.execute(statement, *rows)

    if tally_rows:
        await store.write(upsert_rows)


_UPSERT_TALLIES = build_upsert_statement(
    comparisons, summed=TALLY_COUNTS, greatest=("last_at",), inserted=("first_at",)
)
_UPSERT_DIFFERENCES = build_upsert_statement(
    found_differences,
    _EXAMPLE_COLUMNS,
    summed=("answers",),
    greatest=("last_at",),
    inserted=("first_at",),
)


async def load_comparison_tallies_by_key(store: Store) -> dict[TallyKey, Tally]:
    """Loads every tally, by merchant, environment, key and operation; raises StoreUnavailable."""
    keys = list(comparisons.primary_key)
    tallies: dict[TallyKey, Tally] = {}

    async def load(tx: Transaction) -> tuple[list[Any], list[Any]]:
        tally_rows = await tx.fetch(select(comparisons).order_by(*keys))
        return tally_rows, await tx.fetch(select(found_differences))

    tally_rows, difference_rows = await store.read(load)
    for row in tally_rows:
        values = {name: getattr(row, name) for name in (*TALLY_COUNTS, "first_at", "last_at")}
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
