"""Everything that is known of an id: its spellings, the ledger's facts, and who did what to it.

The id is an object's, a request's (``X-Request-Id``), an undertaking's or a write's.

Nothing personal: of the facts only those are shown that the gateway itself made.
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
"""The facts that are nobody's personal data, by kind."""


FIRST = "the id that it had first"
SERVICES = "the service's"
REAL = "the service's, of what was made of a draft"
ABANDONED = "the service's, abandoned: never to be started"
REQUEST = "a request"
NAMED = "named or made by that request"


@dataclass(frozen=True, slots=True)
class Name:
    """One spelling of an object, and what it is."""

    id: str
    what: str


@dataclass(frozen=True, slots=True)
class Traced:
    """What is known of an object of one owner; ``undertakings`` and ``acts`` the first first."""

    owner: Tenant
    names: tuple[Name, ...]
    facts: Mapping[str, Mapping[str, Any]]
    """The ledger's, by ``<kind> <id>``."""
    payments: int | None
    """How many the ledger has of a batch."""
    undertakings: Sequence[OperationRecord]
    writes: Mapping[str, Sequence[Write]]
    acts: Sequence[AuditEvent]


async def find_object_tenants(store: Store, id_: str) -> list[Tenant]:
    """Under whom anything is known of an id; more than one where two merchants' ids are the same."""
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
    rows = OperationRepository(store, Ledger(store))
    found |= {one.owner for one in await rows.of_request(None, _undertaking(id_))}
    return sorted(found)


def _undertaking(id_: str) -> str:
    """Of a write, as `writes unsettled` names it, the undertaking; any other id as it is."""
    written = re.fullmatch(r"([0-9a-f]{12,})\.\d+", id_)
    return written[1] if written else id_


async def trace_object(store: Store, owner: Tenant, id_: str) -> Traced:
    """Everything that is known of it under one owner."""
    ledger = Ledger(store)
    names = await _names(store, ledger, owner, id_)
    spelled = list(dict.fromkeys(name.id for name in names))
    rows = OperationRepository(store, ledger)
    undertakings = await rows.of_object(owner, spelled)
    if asked := await rows.of_request(owner, _undertaking(id_)):
        names = _of_requests(asked)
        undertakings = sorted({one.id: one for one in [*asked, *undertakings]}.values(), key=_order)
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
    """They, and the objects that lead on from them."""
    objects = dict.fromkeys(object_ for one in those for object_ in one.subjects)
    found = [Name(id_, REQUEST) for id_ in dict.fromkeys(one.request_id for one in those)]
    return found + [Name(object_, NAMED) for object_ in objects]


def _order(one: OperationRecord) -> tuple[datetime, str]:
    return one.began_at, one.id


async def _names(store: Store, ledger: Ledger, owner: Tenant, id_: str) -> list[Name]:
    """Every spelling that leads to the object, and that it leads to."""
    found: dict[tuple[str, str], Name] = {}
    wanted, seen = [id_], set[str]()
    while wanted:
        one = wanted.pop()
        if one in seen:
            continue
        seen.add(one)
        for name in await _of(store, ledger, owner, one):
            found[name.id, name.what] = name
            wanted.append(name.id)
    for its, what in [*found]:
        if what in (REAL, ABANDONED):  # that says it, and more
            found.pop((its, SERVICES), None)
    return list(found.values()) or [Name(id_, "as it was given")]


async def _of(store: Store, ledger: Ledger, owner: Tenant, id_: str) -> list[Name]:
    """What is known of one spelling of it."""
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
            what = "what clients call it, imported" if row.imported else "what clients call it"
            found += [Name(row.legacy_id, what), Name(row.current_id, SERVICES)]
    return found


async def _left_by(ledger: Ledger, owner: Tenant, upstream: str) -> list[str]:
    """The batch that left another one at the service."""
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
    """What operators did that concerns it: to its requests, and to all since the first of them."""
    own = {one.id for one in those}
    first = those[0].began_at if those else None
    return [
        act
        for act in await acts_of(store, owner)
        if act.about in own or (act.about is None and first is not None and act.at >= first)
    ]
