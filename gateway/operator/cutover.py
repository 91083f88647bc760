"""Imports data from the legacy service that the current service does not have.

The import can be repeated: earlier imported values are compared with what the legacy service shows
now, and values that clients have changed through the gateway since then are kept.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.auth.keys import ApiKey, ApiKeyStore
from gateway.config.settings import Settings
from gateway.operator.legacy_reads import (
    LegacyReads,
    NotRead,
    Told,
    load_read_budget,
    save_read_budget,
)
from gateway.reads.recent_reads import Kept
from gateway.storage import Ledger, Store
from gateway.storage.id_rows import Collision, current_ids, keep
from gateway.upstream.capability_cache import load_capabilities
from gateway.upstream.client import create_breakers, open_upstream
from gateway.upstream.optional_endpoints import InferredOperations
from gateway.upstream.passthrough import open_passthrough
from gateway.writes.batch_routing import BEGUN, NOWHERE, is_as_imported
from gateway.writes.journal import Journal
from gateway.writes.player import Caller, Player
from gateway.writes.settler import Settler
from mappings import cutover
from mappings.batch_views import EDITABLE, build_batch_record
from mappings.drafts import build_batch_condition
from mappings.grammar import JSON, Conflict, Failure, Flow, Record
from mappings.ids import SHAPE

SIDE_BY_SIDE = 4

NEW, CHANGED, EQUAL, STAYS = "new", "changed", "equal", "kept"
"""The result for an object. ``kept``: created or changed here, so it is not overwritten."""

Progress = Callable[[int, int], None]
"""Called with the number of objects done and the total that the service reports."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An object that was not imported, and why. Contains no personal data."""

    kind: str
    id: str
    why: str


@dataclass(slots=True)
class Report:
    """Counts by kind and result. ``moved_batches`` are translated from now on."""

    counts: dict[str, Counter[str]] = field(
        default_factory=lambda: {kind: Counter() for kind in ("recipients", "batches", "ids")}
    )
    unmapped: list[Finding] = field(default_factory=list)
    moved: int = 0
    stay: int = 0
    """Batches that stay at the legacy service, which created them."""
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Options:
    dry_run: bool = False
    open_batches: bool = False
    """Import only batches that can still be edited or started."""
    moves_open: bool = False
    """Translate the requests of open batches that the legacy service created, from now on."""


class Cutover:
    """One import run of one tenant. Create it with ``open_cutover``."""

    def __init__(
        self, store: Store, player: Player, reads: LegacyReads, key: ApiKey, options: Options
    ) -> None:
        self._store = store
        self._ledger = Ledger(store)
        self._player = player
        self._reads = reads
        self._owner = key.owner
        self._caller = Caller(key, "cutover")
        self._options = options
        self._report = Report()
        self._done = 0
        self._seen: set[str] = set()
        """Ids of the batches that the legacy service listed."""
        self._would_keep: dict[str, str] = {}
        """Legacy to current ids that a dry run would store; batches are matched by their
        recipients.
        """

    async def run(self, progress: Progress = lambda *_: None) -> Report:
        """Imports recipients, then batches, which refer to them. Raises LegacyReadFailed if a list
        is unreadable.
        """
        # Oldest first: recipients that are created meanwhile are appended, so no page shifts.
        rows = self._reads.rows("/recipients", "recipients", orderBy="createdAt", sortBy="asc")
        await self._each(rows, self._recipient, "recipient", progress)
        listed = (await self._play(cutover.load_listed_batches()))["batches"]

        async def batch(shown: JSON) -> None:
            await self._batch(shown, listed)

        await self._each(self._reads.rows("/batches", "batches"), batch, "batch", progress)
        gone = await self._gone()
        marks = await self._ledger.recall_all(self._owner, BEGUN)
        left = self._report.moved + gone if self._options.dry_run else 0
        self._report.stay = len(marks) - left
        self._report.requests = self._reads.asked
        return self._report

    async def _each(
        self, rows: AsyncIterator[tuple[JSON, int]], bring: Any, kind: str, progress: Progress
    ) -> None:
        """Imports rows concurrently. A row that fails is reported; the others continue."""
        places = asyncio.Semaphore(SIDE_BY_SIDE)

        async def one(shown: JSON) -> None:
            try:
                await bring(shown)
            except (NotRead, Collision) as told:
                self._unmapped(kind, shown["id"], str(told))
            except Failure as failure:
                why = f"the current service cannot be read ({type(failure).__name__}: {failure})"
                self._unmapped(kind, shown["id"], why)
            # One malformed object must not end an import of thousands.
            except (AttributeError, LookupError, TypeError, ValueError) as odd:
                why = f"one of the services shows it in an unexpected shape ({type(odd).__name__})"
                self._unmapped(kind, shown["id"], why)
            finally:
                places.release()
                self._done += 1

        begun, tasks = self._done, []
        try:
            async for shown, records in rows:
                await places.acquire()
                tasks.append(asyncio.create_task(one(shown)))
                progress(self._done - begun, records)
        finally:
            await asyncio.gather(*tasks)

    async def _play(self, flow: Flow) -> Mapping[str, JSON]:
        return (await self._player.play(flow, self._caller)).body

    def _unmapped(self, kind: str, id_: str, why: str) -> None:
        self._report.unmapped.append(Finding(kind, str(id_), why))

    def _count(self, kind: str, what: str) -> None:
        self._report.counts[kind][what] += 1

    async def _names(self, those: Iterable[str]) -> dict[str, str]:
        wanted = set(those)
        found = {name: self._would_keep[name] for name in wanted & self._would_keep.keys()}
        return found | await current_ids(self._store, self._owner, wanted)

    # Recipients

    async def _recipient(self, shown: JSON) -> None:
        if "payout" not in shown:  # a list may omit fields
            whole = (await self._reads.get(f"/recipients/{shown['id']}") or {}).get("recipient")
            if whole is None:
                return  # deleted meanwhile
            shown = whole
        known_as = str(shown["id"])
        names = await self._names([known_as])
        named = {**shown, "id": names.get(known_as, known_as)}
        found = await self._play(cutover.match_recipient(named))
        if found["current"] is None:
            self._unmapped("recipient", known_as, found["why"])
            return
        await self._keep_ids({known_as: found["current"]}, names)
        await self._keep_recipient(found["current"], found["facts"])

    async def _keep_recipient(self, id_: str, facts: Mapping[str, JSON]) -> None:
        known = await self._ledger.recall(self._owner, "recipient", id_)
        now = {name: known.get(name) for name in cutover.KEPT}
        imported = known.get("imported")
        then = imported or dict.fromkeys(cutover.KEPT)
        # Changed since the last import, so by a client through the gateway: that is newer.
        if known.get("deleted") or now != then:
            what = STAYS
        elif now == facts:
            what = EQUAL
        else:
            what = NEW if imported is None else CHANGED
            if not self._options.dry_run:
                await self._record(
                    Record("recipient", id_, {**facts, "imported": dict(facts)}, find=now)
                )
        self._count("recipients", what)

    # Batches

    async def _batch(self, row: JSON, listed: Sequence[JSON] | None) -> None:
        known_as = str(row["id"])
        self._seen.add(known_as)
        if self._options.open_batches and row.get("status") not in EDITABLE:
            return
        shown = (await self._reads.get(f"/batches/{known_as}") or {}).get("batch")
        if shown is None:
            return  # deleted meanwhile
        payments = await self._payments(known_as, shown)
        ids = {known_as, *(str(one["id"]) for one in payments)}
        ids |= {str((one.get("recipient") or {}).get("id")) for one in payments}
        names = await self._names(ids)
        found = await self._play(cutover.match_batch(shown, payments, names, listed))
        if found["current"] is None:
            self._unmapped("batch", known_as, found["why"])
            return
        await self._keep_ids({known_as: found["current"], **found["payments"]}, names)
        await self._keep_batch(found)
        await self._move(known_as, is_open=found["is_open"])

    async def _payments(self, batch: str, shown: JSON) -> list[JSON]:
        """Every payment of a batch; the batch itself may contain only the first page."""
        held = shown.get("payments") or {}
        first, meta = held.get("payments") or [], held.get("meta") or {}
        if len(first) >= int(meta.get("records") or len(first)):
            return list(first)
        rows = self._reads.rows(f"/batches/{batch}/payments", "payments")
        return [one async for one, _records in rows]

    async def _keep_batch(self, found: Mapping[str, JSON]) -> None:
        id_, facts, entries = found["current"], found["facts"], found["entries"]
        known = await self._ledger.recall(self._owner, "batch", id_)
        alias = await self._ledger.recall(self._owner, "alias", id_)
        if alias.get("abandoned") or alias.get("id") or (known and not is_as_imported(known)):
            self._count("batches", STAYS)
            return
        there = (await self._ledger.recall(self._owner, "payments", id_)).get("entries")
        if known and there == entries and facts == {name: known.get(name) for name in facts}:
            self._count("batches", EQUAL)
            return
        version = (known.get("version") or 0) + 1
        # A concurrent edit by a client wins: the imported data is older.
        whole = {**facts, "version": version, "imported": version}
        try:
            if not self._options.dry_run:
                await self._record(
                    replace(
                        build_batch_record(id_, whole, entries), find=build_batch_condition(known)
                    )
                )
        # A client changed the batch since it was read.
        except Conflict:
            self._count("batches", STAYS)
        else:
            self._count("batches", CHANGED if known else NEW)

    async def _move(self, known_as: str, *, is_open: bool) -> None:
        """Moves a batch away from the legacy service, unless it is still open and may not be moved."""
        # An open batch can still be edited or started, and both services must not do so at once.
        if is_open and not self._options.moves_open:
            return
        if await self._ledger.recall(self._owner, BEGUN, known_as):
            self._report.moved += 1
            if not self._options.dry_run:
                await self._record(Record(BEGUN, known_as, NOWHERE))

    async def _gone(self) -> int:
        """Unmarks batches that the legacy service no longer has, and returns their number."""
        gone = 0
        for known_as in await self._ledger.recall_all(self._owner, BEGUN):
            try:
                if known_as in self._seen or await self._is_there(known_as):
                    continue
            except NotRead as unread:
                self._unmapped("batch", known_as, str(unread))
                continue
            gone += 1
            if not self._options.dry_run:
                await self._record(Record(BEGUN, known_as, NOWHERE))
        return gone

    async def _is_there(self, known_as: str) -> bool:
        """Whether the legacy service has the batch. Clients choose the ids that get marked, so one
        may be malformed.
        """
        if not SHAPE.fullmatch(known_as):
            return False
        return await self._reads.get(f"/batches/{known_as}") is not None

    # Keeping

    async def _keep_ids(self, pairs: Mapping[str, str], names: Mapping[str, str]) -> None:
        # Checked here too: a dry run stores nothing, and an id that equals its legacy id is not
        # stored.
        if taken := [name for name, id_ in pairs.items() if names.get(name, id_) != id_]:
            raise Collision(taken[0])
        other = {name: id_ for name, id_ in pairs.items() if name != id_}
        new = {name: id_ for name, id_ in other.items() if names.get(name) != id_}
        if self._options.dry_run:
            self._would_keep |= new
        elif new:
            await keep(self._store, self._owner, new, imported=True)
        self._report.counts["ids"] += Counter({NEW: len(new), EQUAL: len(other) - len(new)})

    async def _record(self, record: Record) -> None:
        await self._ledger.record_all(self._owner, [record])


@asynccontextmanager
async def open_cutover(
    settings: Settings,
    store: Store,
    key: ApiKey,
    api_key: str,
    *,
    per_hour: int,
    options: Options,
    told: Told = lambda _seconds: None,
) -> AsyncIterator[Cutover]:
    """Opens an import run; a gateway may be running.

    The requests to the legacy service are counted against the hourly budget even if the run fails.
    """
    ledger, owner = Ledger(store), key.owner
    configured = settings.environments.configured()
    origins = {owner.environment: configured[owner.environment].legacy_base_url}
    learned = await load_capabilities(ledger, configured)
    budget = await load_read_budget(ledger, owner.environment, key.name, per_hour, told)
    async with (
        open_upstream(settings, learned=learned) as upstream,
        open_passthrough(settings, origins, create_breakers(settings)) as passing,
    ):
        inferred = InferredOperations(settings.upstream.inferred_operations, learned)
        settler = Settler(Journal(store, ledger, upstream.clock), upstream.clock)
        vocabulary = settings.vocabulary.for_mappings()
        player = Player(upstream, ledger, vocabulary, inferred, kept=Kept(), settler=settler)
        reads = LegacyReads(passing, owner.environment, api_key, budget)
        try:
            yield Cutover(store, player, reads, key, options)
        finally:
            await save_read_budget(ledger, owner.environment, key.name, budget)


async def find_cutover_key(store: Store, api_key: str) -> ApiKey | None:
    """The active key with this API key, or None. Raises StoreUnavailable."""
    async with ApiKeyStore(store) as keyring:
        return await keyring.find(api_key)
