"""Imports data from the legacy service that the current service does not have.

The import can be repeated: earlier imported values are compared with what the legacy service shows
now, and values that clients have changed through the gateway since then are kept.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from msgspec import structs

from gateway.auth.keys import ApiKey
from gateway.config.settings import Settings
from gateway.operator import ActionRefused, ProgressCallback
from gateway.operator.ledger_reconciliation import open_flow_executor
from gateway.operator.legacy_reads import LegacyReader, LegacyReadFailed, ReadBudget
from gateway.operator.mode_switches import IMPORT_RECORD
from gateway.storage import ObjectStateStore, Store, Tenant
from gateway.storage.id_rows import IdCollisionError, load_current_ids_by_legacy_id, save_legacy_ids
from gateway.upstream.client import create_circuit_breakers
from gateway.upstream.passthrough import open_passthrough_client
from gateway.writes.batch_routing import is_unchanged_import
from gateway.writes.executor import FlowExecutor
from gateway.writes.write_request import Caller
from mappings import cutover
from mappings.batch_locks import build_unchanged_batch_condition
from mappings.batch_views import build_batch_record
from mappings.effects import JSON, CompareAndSet, Flow
from mappings.failures import Conflict, Failure
from mappings.forwarded_writes import NO_MARK, ROUTING_KIND
from mappings.ids import LEGACY_ID_PATTERN

MAX_CONCURRENT_ROWS = 4

RESULTS = NEW, CHANGED, EQUAL, KEPT = "new", "changed", "equal", "kept"
"""The result for an object. ``kept``: created or changed here, so it is not overwritten."""


class UnmappedObject(NamedTuple):
    """An object that was not imported, and why. Contains no personal data."""

    kind: str
    id: str
    why: str


@dataclass(slots=True)
class ImportReport:
    """Counts by kind and result. ``moved_batches`` are translated from now on."""

    counts: dict[str, Counter[str]] = field(
        default_factory=lambda: {kind: Counter() for kind in ("recipients", "batches", "ids")}
    )
    unmapped: list[UnmappedObject] = field(default_factory=list)
    moved_batches: int = 0
    remaining: int = 0
    """Batches that stay at the legacy service, which created them."""
    requests: int = 0


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """``is_moving_open_batches``: translates the requests of open batches that the legacy service
    created, from now on.
    """

    requests_per_hour: int
    is_dry_run: bool = False
    is_moving_open_batches: bool = False


@dataclass(slots=True)
class CutoverImport:
    """One import run of one tenant. Create it with ``open_cutover``."""

    store: Store
    ledger: ObjectStateStore
    executor: FlowExecutor
    reads: LegacyReader
    caller: Caller
    options: ImportOptions
    report: ImportReport = field(default_factory=ImportReport)
    objects_done: int = 0
    _listed_batch_ids: set[str] = field(default_factory=set)
    """Ids of the batches that the legacy service listed."""
    dry_run_ids: dict[str, str] = field(default_factory=dict)
    """Legacy to current ids that a dry run would store; batches are matched by their recipients."""

    @property
    def owner(self) -> Tenant:
        return self.caller.key.tenant

    async def run_import(self, progress: ProgressCallback = lambda *_: None) -> ImportReport:
        """Imports recipients, then batches, which refer to them. Raises LegacyReadFailed if a list
        is unreadable.
        """
        # Oldest first: recipients that are created meanwhile are appended, so no page shifts.
        rows = self.reads.iter_rows("/recipients", "recipients", orderBy="createdAt", sortBy="asc")
        await self._import_rows(rows, self._import_recipient, "recipient", progress)
        # Read once for all batches, because the list may have many pages.
        listed_batches = (await self._run_flow(cutover.load_listed_batches()))["batches"]
        import_batch = partial(self._import_batch, listed_batches=listed_batches)
        rows = self.reads.iter_rows("/batches", "batches")
        await self._import_rows(rows, import_batch, "batch", progress)
        await self._save(CompareAndSet(*IMPORT_RECORD, {"at": self.store.clock().isoformat()}))
        missing_batches = await self._unmark_batches_missing_at_legacy()
        routing_marks = await self.ledger.load_facts_by_id(self.owner, ROUTING_KIND)
        unmarked = self.report.moved_batches + missing_batches if self.options.is_dry_run else 0
        # A dry run has removed no mark, so those it would remove are subtracted.
        self.report.remaining = len(routing_marks) - unmarked
        self.report.requests = self.reads.request_count
        return self.report

    async def _import_rows(
        self, rows: AsyncIterator[JSON], import_row: Any, kind: str, progress: ProgressCallback
    ) -> None:
        """Imports rows concurrently. A row that fails is reported; the others continue."""
        slots = asyncio.Semaphore(MAX_CONCURRENT_ROWS)

        async def import_row_or_report_failure(row: JSON) -> None:
            try:
                await import_row(row)
            except (LegacyReadFailed, IdCollisionError) as error:
                self._report_unmapped(kind, row["id"], str(error))
            except Failure as failure:
                reason = f"the current service cannot be read ({type(failure).__name__}: {failure})"
                self._report_unmapped(kind, row["id"], reason)
            # One malformed object must not end an import of thousands.
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                reason = (
                    f"one of the services shows it in an unexpected shape ({type(error).__name__})"
                )
                self._report_unmapped(kind, row["id"], reason)
            finally:
                slots.release()
                self.objects_done += 1

        tasks = []
        try:
            async for row in rows:
                # Before the task is created, so that few rows are in memory at a time.
                await slots.acquire()
                tasks.append(asyncio.create_task(import_row_or_report_failure(row)))
                progress(self.objects_done, None)
        finally:
            # Not cancelled: a row that is being saved is finished and reported.
            await asyncio.gather(*tasks)

    async def _run_flow(self, flow: Flow) -> Mapping[str, JSON]:
        return (await self.executor.execute(flow, self.caller)).body

    def _report_unmapped(self, kind: str, id_: str, reason: str) -> None:
        self.report.unmapped.append(UnmappedObject(kind, str(id_), reason))

    async def _load_current_ids_by_legacy_id(self, legacy_ids: Iterable[str]) -> dict[str, str]:
        requested = set(legacy_ids)
        known_ids = {name: self.dry_run_ids[name] for name in requested & self.dry_run_ids.keys()}
        return known_ids | await load_current_ids_by_legacy_id(self.store, self.owner, requested)

    # Recipients

    async def _import_recipient(self, row: JSON) -> None:
        if "payout" not in row:  # a list may omit fields
            answer = await self.reads.fetch_object(f"/recipients/{row['id']}")
            if answer is None:
                return  # deleted meanwhile
            row = answer["recipient"]
        legacy_id = str(row["id"])
        ids = await self._load_current_ids_by_legacy_id([legacy_id])
        row_with_current_id = {**row, "id": ids.get(legacy_id, legacy_id)}
        match = await self._run_flow(cutover.match_legacy_recipient(row_with_current_id))
        if match["current"] is None:
            self._report_unmapped("recipient", legacy_id, match["why"])
            return
        await self._save_new_id_pairs({legacy_id: match["current"]}, ids)
        result = await self._save_recipient(match["current"], match["facts"])
        self.report.counts["recipients"][result] += 1

    async def _save_recipient(self, id_: str, facts: Mapping[str, JSON]) -> str:
        stored = await self.ledger.load(self.owner, "recipient", id_)
        current_values = {name: stored.get(name) for name in cutover.IMPORTED_FACTS}
        imported = stored.get("imported")
        imported_values = imported or dict.fromkeys(cutover.IMPORTED_FACTS)
        # Changed since the last import, so by a client through the gateway: that is newer.
        if stored.get("deleted") or current_values != imported_values:
            return KEPT
        if current_values == facts:
            return EQUAL
        facts = {**facts, "imported": dict(facts)}
        await self._save(CompareAndSet("recipient", id_, facts, expected=current_values))
        return NEW if imported is None else CHANGED

    # Batches

    async def _import_batch(self, row: JSON, *, listed_batches: Sequence[JSON] | None) -> None:
        legacy_id = str(row["id"])
        self._listed_batch_ids.add(legacy_id)
        answer = await self.reads.fetch_object(f"/batches/{legacy_id}")
        if answer is None:
            return  # deleted meanwhile
        batch = answer["batch"]
        payments = await self._fetch_payments_of_batch(legacy_id, batch)
        ids = {legacy_id, *(str(payment["id"]) for payment in payments)}
        ids |= {str((payment.get("recipient") or {}).get("id")) for payment in payments}
        current_by_legacy_id = await self._load_current_ids_by_legacy_id(ids)
        match = await self._run_flow(
            cutover.match_legacy_batch(batch, payments, current_by_legacy_id, listed_batches)
        )
        if match["current"] is None:
            self._report_unmapped("batch", legacy_id, match["why"])
            return
        stored = await self.ledger.load(self.owner, "batch", match["current"])
        is_created_here = bool(stored) and not (stored.get("elsewhere") or stored.get("imported"))
        await self._save_new_id_pairs(
            {legacy_id: match["current"], **match["payments"]},
            current_by_legacy_id,
            # Clients know it by its alias; the legacy service's id then is only another name.
            is_shown=not is_created_here,
        )
        self.report.counts["batches"][await self._save_batch(match)] += 1
        # An open batch can still be edited or started, and both services must not do so at once.
        is_moving = self.options.is_moving_open_batches or not match["is_open"]
        if is_moving and await self.ledger.load(self.owner, ROUTING_KIND, legacy_id):
            self.report.moved_batches += 1
            await self._save(CompareAndSet(ROUTING_KIND, legacy_id, NO_MARK))

    async def _fetch_payments_of_batch(self, batch: str, batch_fields: JSON) -> list[JSON]:
        """Returns every payment of a batch; the batch itself may contain only the first page."""
        page = batch_fields.get("payments") or {}
        first_page, meta = page.get("payments") or [], page.get("meta") or {}
        if len(first_page) >= int(meta.get("records") or len(first_page)):
            return list(first_page)
        return [row async for row in self.reads.iter_rows(f"/batches/{batch}/payments", "payments")]

    async def _save_batch(self, match: Mapping[str, JSON]) -> str:
        id_, facts, entries = match["current"], match["facts"], match["entries"]
        stored = await self.ledger.load(self.owner, "batch", id_)
        redirect = await self.ledger.load(self.owner, "alias", id_)
        is_redirected = redirect.get("abandoned") or redirect.get("id")
        if is_redirected or (stored and not is_unchanged_import(stored)):
            return KEPT
        stored_entries = (await self.ledger.load(self.owner, "payments", id_)).get("entries")
        stored_facts = {name: stored.get(name) for name in facts}
        if stored and (stored_facts, stored_entries) == (facts, entries):
            return EQUAL
        version = (stored.get("version") or 0) + 1
        # A concurrent edit by a client wins: the imported data is older.
        # A restored state may have recorded it as created elsewhere.
        record_facts = {**facts, "elsewhere": None, "version": version, "imported": version}
        try:
            record = build_batch_record(id_, record_facts, entries)
            condition = build_unchanged_batch_condition(stored)
            await self._save(structs.replace(record, expected=condition))
        # A client changed the batch since it was read.
        except Conflict:
            return KEPT
        return CHANGED if stored else NEW

    async def _unmark_batches_missing_at_legacy(self) -> int:
        """Unmarks batches that the legacy service no longer has, and returns their number."""
        missing_count = 0
        marked_ids = await self.ledger.load_facts_by_id(self.owner, ROUTING_KIND)
        for legacy_id in (id_ for id_ in marked_ids if id_ not in self._listed_batch_ids):
            try:
                # Clients choose the ids that get marked, so one may be malformed.
                is_valid = LEGACY_ID_PATTERN.fullmatch(legacy_id)
                if is_valid and await self.reads.fetch_object(f"/batches/{legacy_id}") is not None:
                    continue
            except LegacyReadFailed as error:
                self._report_unmapped("batch", legacy_id, str(error))
                continue
            missing_count += 1
            await self._save(CompareAndSet(ROUTING_KIND, legacy_id, NO_MARK))
        return missing_count

    # Saving

    async def _save_new_id_pairs(
        self, pairs: Mapping[str, str], names: Mapping[str, str], *, is_shown: bool = True
    ) -> None:
        # Checked here too: a dry run stores nothing, and an id that equals its legacy id is not
        # stored.
        if conflicting := [name for name, id_ in pairs.items() if names.get(name, id_) != id_]:
            raise IdCollisionError(conflicting[0])
        differing_ids = {name: id_ for name, id_ in pairs.items() if name != id_}
        new_ids = {name: id_ for name, id_ in differing_ids.items() if names.get(name) != id_}
        if self.options.is_dry_run:
            self.dry_run_ids |= new_ids
        elif new_ids:
            await save_legacy_ids(self.store, self.owner, new_ids, imported=is_shown)
        self.report.counts["ids"] += Counter(
            {NEW: len(new_ids), EQUAL: len(differing_ids) - len(new_ids)}
        )

    async def _save(self, record: CompareAndSet) -> None:
        if not self.options.is_dry_run:
            await self.ledger.compare_and_set_all(self.owner, [record])


@asynccontextmanager
async def open_cutover(
    settings: Settings, store: Store, key: ApiKey, api_key: str, options: ImportOptions
) -> AsyncIterator[CutoverImport]:
    """Opens an import run; a gateway may be running. Raises ActionRefused without a legacy service."""
    name = key.environment
    url = settings.environments.map_legacy_base_urls_by_environment().get(name)
    if not url:
        raise ActionRefused(
            f"environments.{name}.legacy_base_url is not set, so there is no legacy service to "
            "import from"
        )
    breakers = create_circuit_breakers(settings, "legacy")
    async with (
        open_flow_executor(settings, store) as executor,
        open_passthrough_client(settings, {name: url}, breakers) as passthrough,
    ):
        reads = LegacyReader(passthrough, name, api_key, ReadBudget(options.requests_per_hour))
        ledger, caller = ObjectStateStore(store), Caller(key, "cutover")
        yield CutoverImport(store, ledger, executor, reads, caller, options)
