"""Compares every batch and deleted recipient on record with the service, using reads only."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import structlog

from gateway.auth.key_rows import load_credentials, load_tenants_with_credentials
from gateway.auth.keys import ApiKey
from gateway.config.settings import Settings
from gateway.observability import logs
from gateway.operator import REFERENCE_PREFIX, ProgressCallback
from gateway.operator.in_doubt_writes import WriteInDoubt
from gateway.reads.listing import ListReader
from gateway.reads.recipient_cache import RecipientCaches
from gateway.storage import ObjectStateStore, Store, StoreUnavailable, Tenant
from gateway.storage.alias_ids import AliasIds
from gateway.storage.capability_cache import load_capabilities
from gateway.storage.id_rows import load_legacy_ids
from gateway.storage.operations import OperationRepository
from gateway.upstream.client import open_upstream_client
from gateway.upstream.optional_endpoints import OptionalEndpoints
from gateway.writes.executor import FlowExecutor
from gateway.writes.journal import Journal
from gateway.writes.outcome_policy import OutcomePolicy
from gateway.writes.states import IN_DOUBT, RUNNING
from gateway.writes.write_request import Caller
from mappings.consistency_checks import (
    find_batch_differences,
    find_batches_without_records,
    find_deleted_recipient_differences,
    find_recipients_without_alias_id,
    find_superseded_batch_differences,
    record_batch,
)
from mappings.effects import Answer, Flow
from mappings.failures import Conflict, Failure, Refused, Unreachable

log = structlog.get_logger()

MAX_CONCURRENT_CHECKS = 8
MAX_READ_ATTEMPTS = 5
"""Attempts of a read that the service rejects with 429."""

MAX_WAIT_SECONDS = 30

TRANSIENT_KINDS = frozenset({"stuck", "payments", "not_started"})
"""Kinds of findings that a request in progress can cause."""

RECHECK_SECONDS = 1.0

ADVICE = {
    "missing": "check in the dashboard whether it was deleted there; clients cannot continue it",
    "not_started": "check in the dashboard whether it is being processed before it is "
    "started again",
    "started_elsewhere": "no action needed if it was started on purpose, or, after a restore, by the "
    "gateway itself since the backup",
    "payments": "compare the two, and do not start it until it is as intended",
    "stuck": "check what `payout-gateway trace` shows; you may have to repeat its last change "
    "by hand",
    "abandoned_started": "check immediately in the dashboard what it pays, ask support to stop it, "
    "and make sure that nobody is paid twice",
    "left_over": "wait while `payout-gateway writes unsettled` lists its deletion; otherwise archive it in the "
    "dashboard",
    "active_again": "archive it in the dashboard, or leave it as it is: clients do not see it",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference. ``id`` is the id that clients use, ``upstream`` the service's id if it differs.

    ``recorded``: the gateway's records were updated. ``facts``: what to record of an unknown batch.
    """

    owner: Tenant
    kind: str
    id: str
    description: str
    advice: str
    upstream: str | None = None
    alert: bool = False
    recorded: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ReconciliationReport:
    findings: list[Finding] = field(default_factory=list)
    unknown_batches: list[Finding] = field(default_factory=list)
    """Batches that the service lists and the gateway has no record of; also of a rehearsal."""
    unreadable_objects: list[Finding] = field(default_factory=list)
    unreachable_environments: set[str] = field(default_factory=set)
    tenants_without_list: list[Finding] = field(default_factory=list)
    """Tenants whose batches the service does not list."""
    unnamed_recipients: dict[Tenant, list[str]] = field(default_factory=dict)
    """Recipients without a stored legacy id."""
    counts: dict[str, int] = field(default_factory=dict)
    in_doubt: list[WriteInDoubt] = field(default_factory=list)
    skipped_tenants: list[Tenant] = field(default_factory=list)
    was_restored: bool = False
    is_cleared: bool = False
    """Whether the state counts as up to date again."""
    warning: str = ""

    @property
    def data_loss_findings(self) -> list[Finding]:
        """Findings that may result from data that a restored state lost."""
        if not self.was_restored:
            return []
        unknown = [each for each in self.unknown_batches if each.kind != "rehearsal"]
        return [*unknown, *self.tenants_without_list]

    @property
    def exit_code(self) -> int:
        if self.unreadable_objects:
            return 2
        return 1 if self.finding_count else 0

    @property
    def finding_count(self) -> int:
        return len(self.findings) + len(self.in_doubt) + len(self.data_loss_findings)

    @property
    def has_frozen_writes(self) -> bool:
        """Whether writes were frozen, so that an operator checks the findings before any payment."""
        return self.is_cleared and self.exit_code != 0


@dataclass(frozen=True, slots=True)
class ObjectCheck:
    """One check: an object, or a list by its name, and the flow that compares it."""

    owner: Tenant
    id: str
    build_flow: Callable[..., Flow]
    """Of a batch it takes ``is_busy``: whether a request is working on it."""
    counted_as: str
    other_ids: frozenset[str] = frozenset()


@dataclass(slots=True)
class Reconciler:
    """Runs the checks.

    ``open_reconciler`` creates one for a command. A running gateway gives one its own executor.
    """

    store: Store
    ledger: ObjectStateStore
    executor: FlowExecutor
    ids: AliasIds
    environments: Collection[str]
    is_list_avoided: bool = False
    callers: dict[Tenant, Caller] = field(default_factory=dict)

    async def list_tenants(
        self, merchant: str | None = None, environment: str | None = None
    ) -> list[Tenant]:
        return [
            tenant
            for tenant in await load_tenants_with_credentials(self.store)
            if merchant in (None, tenant.merchant) and environment in (None, tenant.environment)
        ]

    async def reconcile(
        self,
        owners: Sequence[Tenant],
        progress: ProgressCallback = lambda *_: None,
        *,
        was_restored: bool = False,
    ) -> ReconciliationReport:
        """Checks every batch and deleted recipient of these tenants. Raises StoreUnavailable.

        If the state ``was_restored``, clients may know batches and recipients that it lacks: these
        get the same legacy ids that clients were given before.
        """
        report, checks = ReconciliationReport(was_restored=was_restored), list[ObjectCheck]()
        for tenant in owners:
            tenant_checks = await self._list_object_checks(tenant)
            if tenant.environment not in self.environments:
                problem = f"[environments.{tenant.environment}] is not configured"
                finding = Finding(tenant, "unreadable", "all", problem, "configure it")
                report.unreadable_objects += [finding] if tenant_checks else []
                continue
            checks += tenant_checks
            find_batches = partial(find_batches_without_records, self._format_now())
            checks.append(ObjectCheck(tenant, "batches", find_batches, "lists"))
            if was_restored and self.ids.has_aliases_for_kind("recipient"):
                find_names = find_recipients_without_alias_id
                checks.append(ObjectCheck(tenant, "recipients", find_names, "names"))
        await self._run_checks(checks, report, progress)
        if was_restored:
            report.unknown_batches = await self._assign_legacy_ids_to_unknown_batches(
                report.unknown_batches
            )
        for tenant, ids in report.unnamed_recipients.items():
            # Derived from the service's id, so that clients find the ids that they stored.
            await self.ids.find_or_create_legacy_ids(
                tenant, {("recipient", id_) for id_ in ids}, is_cached=False
            )
        return report

    async def _assign_legacy_ids_to_unknown_batches(
        self, unknown: Sequence[Finding]
    ) -> list[Finding]:
        """Stores the legacy ids of unknown batches, which the backup lacked; returns the findings."""
        named_findings = []
        for finding in unknown:
            id_ = finding.id
            ids = await self.ids.find_or_create_legacy_ids(finding.owner, {("batch", id_)})
            upstream = id_ if id_ in ids else None
            named_findings.append(replace(finding, id=ids.get(id_, id_), upstream=upstream))
        return named_findings

    async def record_unknown_batches(self, report: ReconciliationReport) -> None:
        """Records unknown batches, like those that are changed through the gateway."""
        for position, finding in enumerate(report.unknown_batches):
            if finding.kind != "unknown":
                continue
            flow = record_batch(finding.upstream or finding.id, finding.facts)
            answer = await self.executor.execute(flow, await self._load_caller(finding.owner))
            if answer.body["recorded"]:
                description = f"{finding.description}; it is recorded now"
                recorded = replace(finding, description=description, recorded=True)
                report.unknown_batches[position] = recorded

    async def check_superseded_batches(self) -> list[Finding]:
        """Returns the superseded batches that were started elsewhere, as far as readable."""
        checks = [
            check
            for owner in await self.list_tenants()
            if owner.environment in self.environments
            for check in await self._list_superseded_batch_checks(owner)
        ]
        report = ReconciliationReport()
        await self._run_checks(checks, report, lambda *_: None)
        return report.findings

    async def _list_object_checks(self, owner: Tenant) -> list[ObjectCheck]:
        batches = await self.ledger.load_facts_by_id(owner, "batch")
        recipients = await self.ledger.load_facts_by_id(owner, "recipient")
        checks = [
            ObjectCheck(
                owner,
                id_,
                partial(find_batch_differences, id_, self._format_now()),
                "batches",
                frozenset(filter(None, [facts.get("upstream")])),
            )
            for id_, facts in batches.items()
        ]
        checks += [
            ObjectCheck(owner, id_, partial(find_deleted_recipient_differences, id_), "recipients")
            for id_, facts in recipients.items()
            if facts.get("deleted")
        ]
        return [*checks, *await self._list_superseded_batch_checks(owner)]

    async def _list_superseded_batch_checks(self, owner: Tenant) -> list[ObjectCheck]:
        find_differences, now = find_superseded_batch_differences, self._format_now()
        return [
            ObjectCheck(owner, id_, partial(find_differences, id_, now), "abandoned")
            for id_ in await self.ledger.load_superseded_batch_aliases(owner)
        ]

    def _format_now(self) -> str:
        return f"{self.store.clock():%Y-%m-%dT%H:%M:%S.000Z}"

    # Running the checks

    async def _run_checks(
        self,
        checks: Sequence[ObjectCheck],
        report: ReconciliationReport,
        progress: ProgressCallback,
    ) -> None:
        """Runs checks concurrently, and adds their findings to the report."""
        # One iterator for all runners: each takes the next check that no other has taken.
        remaining, checks_done = iter(checks), 0
        progress(0, len(checks))

        async def run_remaining_checks() -> None:
            nonlocal checks_done
            for check in remaining:
                await self._run_check(check, report)
                checks_done += 1
                progress(checks_done, len(checks))

        await asyncio.gather(*(run_remaining_checks() for _ in range(MAX_CONCURRENT_CHECKS)))

    async def _run_check(self, check: ObjectCheck, report: ReconciliationReport) -> None:
        try:
            answer = await self._run_flow(check)
        # Not a finding about one object: without the state nothing can be compared.
        except StoreUnavailable:
            raise
        except Failure as failure:
            status = failure.status if isinstance(failure, Refused) else None
            if isinstance(failure, Unreachable):
                report.unreachable_environments.add(check.owner.environment)
            reason = f"refused, status {status}" if status else str(failure)
            problem = f"it could not be read ({reason})"
            action = (
                "run `payout-gateway keys verify`, fix the credentials or revoke the merchant's keys"
                if status in (401, 403)
                else "check that the service can be reached"
            )
            advice = f"{action}, and run this again"
            report.unreadable_objects.append(
                Finding(check.owner, "unreadable", check.id, problem, advice)
            )
            return
        report.counts[check.counted_as] = report.counts.get(check.counted_as, 0) + 1
        if check.counted_as == "lists":
            self._report_unknown_batches(check, answer, report)
        if check.counted_as == "names":
            report.unnamed_recipients[check.owner] = answer.body["unnamed"]
        for difference in await self._recheck_and_keep_lasting_differences(
            check, answer.body["differences"]
        ):
            report.findings.append(await self._build_finding(check, difference))

    async def _recheck_and_keep_lasting_differences(
        self, check: ObjectCheck, differences: Sequence[Any]
    ) -> list[Any]:
        """Returns the differences that still exist a moment later."""
        # A change in progress looks like a difference until it is complete.
        lasting = [each for each in differences if each["kind"] not in TRANSIENT_KINDS]
        if len(lasting) == len(differences):
            return lasting
        await asyncio.sleep(RECHECK_SECONDS)
        return [*lasting, *(await self._run_flow(check)).body["differences"]]

    def _report_unknown_batches(
        self, check: ObjectCheck, answer: Answer, report: ReconciliationReport
    ) -> None:
        if answer.body["listed"] is None:
            reason, advice = "the service does not list batches", "nothing can be done here"
            if self.is_list_avoided:
                reason = "upstream.inferred_operations is avoid"
                advice = (
                    "if the service has it, run this once with "
                    "PAYOUT_GATEWAY_UPSTREAM__INFERRED_OPERATIONS=auto"
                )
            problem = f"{reason}, so batches without a record here cannot be found"
            finding = Finding(check.owner, "unlisted", check.id, problem, advice)
            report.tenants_without_list.append(finding)
            return
        for id_, (status, description, facts) in answer.body["unknown"].items():
            shown = status or "no status"
            kind = "unknown"
            problem = f"the service lists it ({shown}), but the gateway has no record of it"
            advice = "no action needed if it was created elsewhere"
            # No client knows those of a rehearsal, which only the sandbox has.
            is_sandbox = check.owner.environment == "sandbox"
            if is_sandbox and str(description).startswith(REFERENCE_PREFIX):
                kind = "rehearsal"
                problem = f"the service lists it ({shown}), and a rehearsal made it"
                advice = "no action needed; the next rehearsal deletes it if the service can"
            report.unknown_batches.append(
                Finding(check.owner, kind, id_, problem, advice, facts=facts)
            )

    async def _build_finding(self, check: ObjectCheck, difference: Any) -> Finding:
        names = await load_legacy_ids(self.store, check.owner, [check.id])
        shown_id = names.get(check.id, check.id)
        # An edited batch may have another id there by now.
        service_id = next(iter(check.other_ids), check.id)
        return Finding(
            check.owner,
            difference["kind"],
            shown_id,
            difference["says"],
            ADVICE[difference["kind"]],
            upstream=service_id if shown_id != service_id else None,
            alert=bool(difference.get("alert")),
            recorded=bool(difference.get("recorded")),
        )

    async def _run_flow(self, check: ObjectCheck) -> Answer:
        caller = await self._load_caller(check.owner)
        for attempts_left in reversed(range(MAX_READ_ATTEMPTS)):
            try:
                if check.counted_as != "batches":
                    return await self.executor.execute(check.build_flow(), caller)
                # Read again for each attempt.
                is_busy = await self._is_busy(check)
                return await self.executor.execute(check.build_flow(is_busy=is_busy), caller)
            # A client changed the object while it was read.
            except Conflict:
                if not attempts_left:
                    raise
            except Refused as refused:
                if refused.status != 429 or not attempts_left:
                    raise
                # The service's rate limit is shared with clients, so back off.
                given = refused.retry_after or ""
                await asyncio.sleep(min(int(given) if given.isdecimal() else 1, MAX_WAIT_SECONDS))
        # Not reached: the last attempt returns or raises.
        raise AssertionError

    async def _is_busy(self, check: ObjectCheck) -> bool:
        """Whether an operation of the batch has not ended."""
        records = await OperationRepository(self.store, self.ledger).list_by_object(
            check.owner, [check.id, *check.other_ids]
        )
        return any(record.state in (RUNNING, IN_DOUBT) for record in records)

    async def _load_caller(self, owner: Tenant) -> Caller:
        if owner not in self.callers:
            credentials = await load_credentials(self.store, owner)
            # A placeholder: the executor needs only the tenant's credentials.
            key = ApiKey(
                "", "reconcile", "", owner.merchant, owner.environment, credentials, None, ()
            )
            self.callers[owner] = Caller(key, "reconcile")
        return self.callers[owner]


@asynccontextmanager
async def monitor_superseded_batches(reconciler: Reconciler, seconds: float) -> AsyncIterator[None]:
    """Checks periodically whether a superseded batch was started elsewhere; never if 0."""
    task = asyncio.create_task(_log_started_batches(reconciler, seconds)) if seconds else None
    try:
        yield
    finally:
        if task:
            # It only reads, so that nothing is left half done.
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _log_started_batches(reconciler: Reconciler, seconds: float) -> None:
    while True:
        try:
            for finding in await reconciler.check_superseded_batches():
                reason = "a recipient may be paid twice, or paid an amount that was withdrawn"
                log.error(
                    "abandoned_batch_started",
                    merchant=finding.owner.merchant,
                    environment=finding.owner.environment,
                    batch=finding.upstream or finding.id,
                    reason=f"{finding.description}; {reason}",
                    hint=finding.advice,
                )
        except StoreUnavailable as unavailable:
            log.error("abandoned_batch_check_failed", reason=str(unavailable))
        except Exception as error:  # noqa: BLE001 - the next check may succeed
            log.error("abandoned_batch_check_failed", **logs.describe_exception(error))
        await asyncio.sleep(seconds)


@asynccontextmanager
async def open_reconciler(settings: Settings, store: Store) -> AsyncIterator[Reconciler]:
    """Opens a reconciler with its own connections; a gateway may be running."""
    environments = settings.environments.map_configured_environments_by_name()
    async with open_flow_executor(settings, store) as executor:
        ids = AliasIds(store, settings.legacy.stand_ins)
        is_list_avoided = settings.upstream.inferred_operations == "avoid"
        ledger = ObjectStateStore(store)
        yield Reconciler(store, ledger, executor, ids, environments, is_list_avoided)


@asynccontextmanager
async def open_flow_executor(settings: Settings, store: Store) -> AsyncIterator[FlowExecutor]:
    """Opens an executor that shares nothing but the database with a gateway that is running."""
    ledger = ObjectStateStore(store)
    capabilities = await load_capabilities(store)
    async with open_upstream_client(settings, capabilities=capabilities) as upstream:
        yield FlowExecutor(
            upstream,
            ledger,
            settings.vocabulary.build_vocabulary(),
            OptionalEndpoints(settings.upstream.inferred_operations, capabilities),
            policy=OutcomePolicy(Journal(store, ledger, upstream.clock), upstream.clock),
            listing=ListReader(RecipientCaches(settings.lists)),
        )
