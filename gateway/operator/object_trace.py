"""Collects everything known about an id: other ids of the object, its records, and its history.

The id may be of an object, a request (``X-Request-Id``), an operation or a write.

The result contains no personal data: only facts that the gateway itself created are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, or_, select

from gateway.storage import Ledger, Store, Tenant
from gateway.storage.audit_log import AuditEvent, acts_of
from gateway.storage.tables import ids, journal_subjects, remembered
from gateway.storage.undertakings import OperationRecord, OperationRepository, Write

SHOWN: Mapping[str, tuple[str, ...]] = {
    "batch": (
        "phase",
        "version",
        "upstream",
        "abandoned",
        "elsewhere",
        "is_new",
        "imported",
        "since",
        "started",
        "currency",
        "createdAt",
        "updatedAt",
    ),
    "recipient": ("status", "deleted", "still_there", "autoswitch", "holdup"),
    "alias": ("id", "batch", "abandoned", "gone", "started"),
    "begun": ("at",),
}
"""The facts to show, by kind of object. None is personal data."""


FIRST = "the original id"
SERVICES = "the service's id"
REAL = "the service's id, created from a draft"
ABANDONED = "the service's id, superseded: must never be started"
REQUEST = "a request"
NAMED = "named or created by that request"


@dataclass(frozen=True, slots=True)
class Name:
    """One id of an object, and what kind of id it is."""

    id: str
    what: str


@dataclass(frozen=True, slots=True)
class Traced:
    """Everything known about an object of one tenant. Operations and audit events are oldest first."""

    owner: Tenant
    names: tuple[Name, ...]
    facts: Mapping[str, Mapping[str, Any]]
    """The gateway's records, by ``<kind> <id>``."""
    payments: int | None
    """Number of recorded payments if the object is a batch."""
    undertakings: Sequence[OperationRecord]
    writes: Mapping[str, Sequence[Write]]
    acts: Sequence[AuditEvent]


async def find_object_tenants(store: Store, id_: str) -> list[Tenant]:
    """The tenants that know an id. Two merchants may have objects with the same id."""
    asked: list[tuple[Table, ColumnElement[bool]]] = [
        (ids, or_(ids.c.legacy_id == id_, ids.c.current_id == id_)),
        (remembered, remembered.c.id == id_),
        (journal_subjects, journal_subjects.c.object == id_),
    ]
    found: set[Tenant] = set()
    async with store.read() as connection:
        for table, where in asked:
            those = select(table.c.merchant, table.c.environment).where(where).distinct()
            for row in await connection.execute(those):
                found.add(Tenant(row.merchant, row.environment))
    # An id may be of a request or operation whose objects are not stored any more.
    rows = OperationRepository(store, Ledger(store))
    found |= {one.owner for one in await rows.of_request(None, _undertaking(id_))}
    return sorted(found)


def _undertaking(id_: str) -> str:
    """The operation id of a write id, as `writes unsettled` shows it; any other id unchanged."""
    written = re.fullmatch(r"([0-9a-f]{12,})\.\d+", id_)
    return written[1] if written else id_


async def trace_object(store: Store, owner: Tenant, id_: str) -> Traced:
    """Collects everything known about an id of one tenant. Raises StoreUnavailable."""
    ledger = Ledger(store)
    names = await _names(store, ledger, owner, id_)
    spelled = list(dict.fromkeys(name.id for name in names))
    rows = OperationRepository(store, ledger)
    undertakings = await rows.of_object(owner, spelled)
    if asked := await rows.of_request(owner, _undertaking(id_)):
        names = _of_requests(asked)
        undertakings = sorted({one.id: one for one in [*asked, *undertakings]}.values(), key=_order)
    # Payments are stored under one of the ids only.
    entries: Mapping[str, Any] = {}
    for one in spelled:
        entries = entries or await ledger.recall(owner, "payments", one)
    return Traced(
        owner,
        tuple(names),
        await _facts(ledger, owner, spelled),
        len(entries["entries"]) if "entries" in entries else None,
        undertakings,
        await rows.writes_of(*(one.id for one in undertakings)),
        await _acts(store, owner, undertakings),
    )


def _of_requests(those: Sequence[OperationRecord]) -> list[Name]:
    """Names for the requests and for the objects that they concern."""
    objects = dict.fromkeys(object_ for one in those for object_ in one.subjects)
    found = [Name(id_, REQUEST) for id_ in dict.fromkeys(one.request_id for one in those)]
    return found + [Name(object_, NAMED) for object_ in objects]


def _order(one: OperationRecord) -> tuple[datetime, str]:
    return one.began_at, one.id


async def _names(store: Store, ledger: Ledger, owner: Tenant, id_: str) -> list[Name]:
    """Every id of the object, found by following its known ids transitively."""
    found: dict[tuple[str, str], Name] = {}
    wanted, seen = [id_], set[str]()
    # An edited batch has a chain of ids, one per submission: follow them in both directions.
    while wanted:
        one = wanted.pop()
        if one in seen:
            continue
        seen.add(one)
        for name in await _of(store, ledger, owner, one):
            found[name.id, name.what] = name
            wanted.append(name.id)
    for its, what in [*found]:
        if what in (REAL, ABANDONED):  # the more specific description replaces the general one
            found.pop((its, SERVICES), None)
    return list(found.values()) or [Name(id_, "the given id")]


async def _of(store: Store, ledger: Ledger, owner: Tenant, id_: str) -> list[Name]:
    """Ids directly related to one id of the object."""
    found = await _spellings(store, owner, id_)
    alias = await ledger.recall(owner, "alias", id_)
    if alias.get("id"):
        found += [Name(id_, REAL), Name(alias["id"], FIRST)]
    if alias.get("batch"):
        found.append(Name(id_, f"a payment of batch {alias['batch']}"))
    if alias.get("abandoned"):
        left_by = await _left_by(ledger, owner, id_)
        found += [Name(id_, ABANDONED), *(Name(one, FIRST) for one in left_by)]
    batch = await ledger.recall(owner, "batch", id_)
    if (upstream := batch.get("upstream")) and upstream != id_:
        found.append(Name(upstream, REAL))
    return [*found, *(Name(one, ABANDONED) for one in batch.get("abandoned", []))]


async def _spellings(store: Store, owner: Tenant, id_: str) -> list[Name]:
    mine = and_(ids.c.merchant == owner.merchant, ids.c.environment == owner.environment)
    those = select(ids).where(mine, or_(ids.c.legacy_id == id_, ids.c.current_id == id_))
    found: list[Name] = []
    async with store.read() as connection:
        for row in await connection.execute(those):
            what = "the legacy id, imported" if row.imported else "the legacy id"
            found += [Name(row.legacy_id, what), Name(row.current_id, SERVICES)]
    return found


async def _left_by(ledger: Ledger, owner: Tenant, upstream: str) -> list[str]:
    """Batches that superseded this batch of the service."""
    batches = await ledger.recall_all(owner, "batch")
    return [id_ for id_, facts in batches.items() if upstream in facts.get("abandoned", [])]


async def _facts(ledger: Ledger, owner: Tenant, those: Iterable[str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for id_ in those:
        for kind, names in SHOWN.items():
            facts = await ledger.recall(owner, kind, id_)
            if shown := {name: facts[name] for name in names if facts.get(name) is not None}:
                found[f"{kind} {id_}"] = shown
    return found


async def _acts(store: Store, owner: Tenant, those: Sequence[OperationRecord]) -> list[AuditEvent]:
    """Audit events about these operations, and general events since the first of them."""
    own = {one.id for one in those}
    first = those[0].began_at if those else None
    return [
        act
        for act in await acts_of(store, owner)
        if act.about in own or (act.about is None and first is not None and act.at >= first)
    ]
