"""Compares every batch and deleted recipient on record with the service, using reads only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gateway.auth.key_rows import (
    load_credentials,
    load_tenants_with_active_keys,
    load_tenants_with_credentials,
)
from gateway.auth.keys import ApiKey
from gateway.config.settings import Settings
from gateway.reads.recent_reads import Kept
from gateway.storage import Ledger, Store, StoreUnavailable, Tenant
from gateway.storage.alias_ids import Ids
from gateway.storage.id_rows import legacy_ids
from gateway.storage.undertakings import RUNNING, UNSETTLED, OperationRepository
from gateway.upstream.capability_cache import load_capabilities
from gateway.upstream.client import open_upstream
from gateway.upstream.optional_endpoints import InferredOperations
from gateway.writes.journal import Journal
from gateway.writes.player import Caller, Player
from gateway.writes.settler import Settler
from mappings import agreement
from mappings.grammar import Answer, Conflict, Failure, Flow, Refused

SIDE_BY_SIDE = 8
PATIENCE = 5
"""Attempts of a read that the service rejects with 429."""

LONGEST_WAIT = 30

PASSING = frozenset({"stuck", "payments", "not_started"})
"""Kinds of findings that a request in progress can cause."""

A_MOMENT = 1.0

DO = {
    "missing": "check in the dashboard whether it was deleted there; clients cannot continue it",
    "not_started": "check in the dashboard whether it is being processed before it is "
    "started again",
    "started_elsewhere": "nothing, if it was started on purpose",
    "payments": "compare the two, and do not start it until it is as intended",
    "stuck": "check what `payout-gateway trace` shows; you may have to repeat its last change "
    "by hand",
    "abandoned_started": "check immediately in the dashboard what it pays, ask support to stop it, "
    "and make sure that nobody is paid twice",
    "left_over": "archive it in the dashboard",
    "active_again": "archive it in the dashboard, or leave it as it is: clients do not see it",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference. ``id`` is the id that clients use, ``upstream`` the service's id if it differs.

    ``recorded``: the gateway's records were updated.
    """

    owner: Tenant
    kind: str
    id: str
    says: str
    do: str
    upstream: str | None = None
    alert: bool = False
    recorded: bool = False


@dataclass(slots=True)
class Report:
    findings: list[Finding] = field(default_factory=list)
    unknown: list[Finding] = field(default_factory=list)
    """Batches that the service lists and the gateway has no record of."""
    unreadable: list[Finding] = field(default_factory=list)
    unlisted: list[Finding] = field(default_factory=list)
    """Tenants whose batches the service does not list."""
    unnamed: dict[Tenant, list[str]] = field(default_factory=dict)
    """Recipients without a stored legacy id."""
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Look:
    """One check: an object and the flow that compares it."""

    owner: Tenant
    id: str
    flow: Callable[[bool], Flow]
    """Takes whether a request is working on the object."""
    of: str
    also: frozenset[str] = frozenset()
    """Other ids of the object."""


Progress = Callable[[int, int], None]
"""Called with the number of checks done and the total."""


class Reconciler:
    """Runs the checks. ``open_reconciler`` creates one for a command; a running gateway shares its
    player.
    """

    def __init__(
        self, store: Store, ledger: Ledger, player: Player, ids: Ids, configured: Iterable[str]
    ) -> None:
        self._store = store
        self._ids = ids
        self._ledger = ledger
        self._player = player
        self._configured = frozenset(configured)
        self._callers: dict[Tenant, Caller] = {}

    async def owners(
        self, merchant: str | None = None, environment: str | None = None
    ) -> list[Tenant]:
        return [
            one
            for one in await load_tenants_with_credentials(self._store)
            if merchant in (None, one.merchant) and environment in (None, one.environment)
        ]

    async def without_keys(self) -> set[Tenant]:
        """Tenants without an active key: no client can start their batches through the gateway."""
        return {*await self.owners()} - await load_tenants_with_active_keys(self._store)

    async def reconcile(
        self,
        owners: Sequence[Tenant],
        progress: Progress = lambda *_: None,
        *,
        was_restored: bool = False,
    ) -> Report:
        """Checks every batch and deleted recipient of these tenants. Raises StoreUnavailable.

        If the state ``was_restored``, clients may know batches and recipients that it lacks: these
        get the same legacy ids that clients were given before.
        """
        report, looks = Report(), []
        for owner in owners:
            its = await self._looks(owner)
            if owner.environment in self._configured:
                looks += [
                    *its,
                    Look(owner, "", lambda _busy: agreement.find_unknown_batches(), "lists"),
                ]
                if was_restored and self._ids.has_stand_ins("recipient"):
                    looks.append(Look(owner, "", _unnamed_recipients, "names"))
            elif its:
                said = f"[environments.{owner.environment}] is not configured"
                report.unreadable.append(Finding(owner, "unreadable", "-", said, "configure it"))
        await self._take(looks, report, progress)
        if was_restored:
            report.unknown = await self._named(report.unknown)
        for owner, ids in report.unnamed.items():
            await self._ids.legacy(owner, {("recipient", id_) for id_ in ids}, keeps=False)
        return report

    async def _named(self, unknown: Sequence[Finding]) -> list[Finding]:
        """Stores the legacy ids of unknown batches, which the backup lacked, and shows them in
        findings.
        """
        names = {
            owner: await self._ids.legacy(
                owner, {("batch", one.id) for one in unknown if one.owner == owner}
            )
            for owner in {one.owner for one in unknown}
        }
        return [
            replace(one, id=name, upstream=one.id)
            if (name := names[one.owner].get(one.id))
            else one
            for one in unknown
        ]

    async def abandoned(self) -> list[Finding]:
        """Superseded batches that were started elsewhere. Unreadable ones are omitted."""
        looks = [
            look
            for owner in await self.owners()
            if owner.environment in self._configured
            for look in await self._abandoned(owner)
        ]
        report = Report()
        await self._take(looks, report, lambda *_: None)
        return report.findings

    async def _looks(self, owner: Tenant) -> list[Look]:
        batches = await self._ledger.recall_all(owner, "batch")
        recipients = await self._ledger.recall_all(owner, "recipient")
        looks = [
            Look(owner, id_, partial(self._batch, id_), "batches", _names(facts))
            for id_, facts in batches.items()
        ]
        looks += [
            Look(owner, id_, partial(self._recipient, id_), "recipients")
            for id_, facts in recipients.items()
            if facts.get("deleted")
        ]
        return [*looks, *await self._abandoned(owner)]

    def _batch(self, id_: str, is_busy: bool) -> Flow:
        return agreement.check_batch(id_, self._now(), is_busy=is_busy)

    def _recipient(self, id_: str, _is_busy: bool) -> Flow:
        return agreement.check_deleted_recipient(id_)

    def _left(self, id_: str, _is_busy: bool) -> Flow:
        return agreement.check_abandoned_batch(id_, self._now())

    async def _abandoned(self, owner: Tenant) -> list[Look]:
        return [
            Look(owner, id_, partial(self._left, id_), "abandoned")
            for id_ in await self._ledger.abandoned(owner)
        ]

    def _now(self) -> str:
        return f"{self._store.clock():%Y-%m-%dT%H:%M:%S.000Z}"

    # Running the checks

    async def _take(self, looks: Sequence[Look], report: Report, progress: Progress) -> None:
        """Runs checks concurrently, and adds their findings to the report."""
        left, done = iter(looks), 0
        progress(0, len(looks))

        async def work() -> None:
            nonlocal done
            for look in left:
                await self._look(look, report)
                done += 1
                progress(done, len(looks))

        await asyncio.gather(*(work() for _ in range(SIDE_BY_SIDE)))

    async def _look(self, look: Look, report: Report) -> None:
        try:
            answer = await self._answer(look)
        # Not a finding about one object: without the state nothing can be compared.
        except StoreUnavailable:
            raise
        except Failure as failure:
            status = failure.status if isinstance(failure, Refused) else None
            why = f"refused, status {status}" if status else str(failure)
            said = f"it could not be read ({why})"
            do = f"{_to_mend(status)}, and run this again"
            report.unreadable.append(Finding(look.owner, "unreadable", look.id or "-", said, do))
            return
        report.counts[look.of] = report.counts.get(look.of, 0) + 1
        if look.of == "lists":
            self._listed(look, answer, report)
        if look.of == "names":
            report.unnamed[look.owner] = answer.body["unnamed"]
        for found in await self._lasting(look, answer.body["differences"]):
            report.findings.append(await self._finding(look, found))

    async def _lasting(self, look: Look, found: Sequence[Any]) -> list[Any]:
        """The findings that persist a moment later. Concurrent requests cause temporary ones."""
        # A change in progress looks like a difference until it is complete.
        passing = [one for one in found if one["kind"] in PASSING]
        if not passing:
            return [*found]
        await asyncio.sleep(A_MOMENT)
        again = (await self._answer(look)).body["differences"]
        return [*(one for one in found if one not in passing), *again]

    def _listed(self, look: Look, answer: Answer, report: Report) -> None:
        if answer.body["listed"] is None:
            said = (
                "the service does not list batches, so batches without a record here cannot "
                "be found"
            )
            do = "nothing can be done here"
            report.unlisted.append(Finding(look.owner, "unlisted", "batches", said, do))
            return
        for id_, status in answer.body["unknown"].items():
            said = (
                f"the service lists it ({status or 'no status'}), but the gateway has no "
                "record of it"
            )
            do = "nothing, if it was created elsewhere"
            report.unknown.append(Finding(look.owner, "unknown", id_, said, do))

    async def _finding(self, look: Look, found: Any) -> Finding:
        names = await legacy_ids(self._store, look.owner, [look.id])
        shown = names.get(look.id, look.id)
        return Finding(
            look.owner,
            found["kind"],
            shown,
            found["says"],
            DO[found["kind"]],
            upstream=look.id if shown != look.id else None,
            alert=bool(found.get("alert")),
            recorded=bool(found.get("recorded")),
        )

    async def _answer(self, look: Look) -> Answer:
        caller = await self._caller(look.owner)
        for left in reversed(range(PATIENCE)):
            try:
                return await self._player.play(look.flow(await self._is_busy(look)), caller)
            # A client changed the object while it was read.
            except Conflict:
                if not left:
                    raise
            except Refused as refused:
                if refused.status != 429 or not left:
                    raise
                # The service's rate limit is shared with clients, so back off.
                wait = refused.retry_after or ""
                await asyncio.sleep(min(int(wait) if wait.isdecimal() else 1, LONGEST_WAIT))
        raise AssertionError

    async def _is_busy(self, look: Look) -> bool:
        if look.of != "batches":
            return False
        those = await OperationRepository(self._store, self._ledger).of_object(
            look.owner, [look.id, *look.also]
        )
        return any(one.state in (RUNNING, UNSETTLED) for one in those)

    async def _caller(self, owner: Tenant) -> Caller:
        if owner not in self._callers:
            pair = await load_credentials(self._store, owner)
            # A placeholder: the player needs only the tenant's credentials.
            key = ApiKey("", "reconcile", "", owner.merchant, owner.environment, pair, None, ())
            self._callers[owner] = Caller(key, "reconcile")
        return self._callers[owner]


def _unnamed_recipients(_busy: bool) -> Flow:
    return agreement.find_unnamed_recipients()


def _to_mend(status: int | None) -> str:
    if status in (401, 403):
        return "run `payout-gateway keys verify`, fix the credentials"
    return "check that the service can be reached"


def _names(facts: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(filter(None, [facts.get("upstream")]))


@asynccontextmanager
async def open_reconciler(settings: Settings, store: Store) -> AsyncIterator[Reconciler]:
    """Opens a reconciler with its own connections; a gateway may be running."""
    ledger = Ledger(store)
    configured = settings.environments.configured()
    learned = await load_capabilities(ledger, configured)
    async with open_upstream(settings, learned=learned) as upstream:
        inferred = InferredOperations(settings.upstream.inferred_operations, learned)
        settler = Settler(Journal(store, ledger, upstream.clock), upstream.clock)
        vocabulary = settings.vocabulary.for_mappings()
        player = Player(upstream, ledger, vocabulary, inferred, kept=Kept(), settler=settler)
        ids = Ids(store, settings.legacy.stand_ins)
        yield Reconciler(store, ledger, player, ids, configured)
