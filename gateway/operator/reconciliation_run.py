"""Compares the gateway's records with the service, and ends the block of a restored state."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gateway.config.settings import Settings
from gateway.operator import ActionRefused
from gateway.operator.in_doubt_writes import WriteInDoubt, load_in_doubt_writes
from gateway.operator.ledger_reconciliation import (
    Finding,
    ProgressCallback,
    Reconciler,
    ReconciliationReport,
    open_reconciler,
)
from gateway.operator.preflight import check_settings_are_runnable
from gateway.operator.restore_check import is_restored
from gateway.storage import Store, StoreUnavailable, Tenant, open_store
from gateway.storage.freezes import freeze_writes
from gateway.storage.restore_detection import (
    NO_MARK,
    clear_restored_flag,
    read_high_water_mark_file,
    write_high_water_mark_if_greater,
)


@dataclass(slots=True)
class ReconcileResult:
    """The result of a reconciliation. ``is_cleared``: the state counts as up to date again."""

    report: ReconciliationReport
    in_doubt: list[WriteInDoubt] = field(default_factory=list)
    skipped_tenants: list[Tenant] = field(default_factory=list)
    was_restored: bool = False
    is_cleared: bool = False
    warning: str = ""

    @property
    def data_loss_findings(self) -> list[Finding]:
        """Findings that may result from data that a restored state lost."""
        if not self.was_restored:
            return []
        return [*self.report.unknown_batches, *self.report.tenants_without_list]

    @property
    def exit_code(self) -> int:
        if self.report.unreadable_objects:
            return 2
        return 1 if self.report.findings or self.in_doubt or self.data_loss_findings else 0

    @property
    def has_frozen_writes(self) -> bool:
        """Whether writes were frozen so that an operator checks the findings before anything is
        paid.
        """
        return self.is_cleared and self.exit_code != 0


async def reconcile_and_clear_restored_flag(
    settings: Settings,
    merchant: str | None,
    environment: str | None,
    leave_out: frozenset[str],
    progress: ProgressCallback,
) -> ReconcileResult:
    """Compares the tenants of a merchant and environment, or all, except those left out.

    Raises ConfigurationError, ActionRefused and StoreUnavailable.
    """
    # A configuration that cannot run must fail before any call.
    check_settings_are_runnable(settings)
    async with (
        open_store(settings.state, create=False) as store,
        open_reconciler(settings, store) as reconciler,
    ):
        was_restored = await is_restored(store, settings.state.restore_mark_path)
        tenants = await reconciler.list_tenants(merchant, environment)
        if not tenants and (merchant or environment):
            raise ActionRefused(
                "no key has this merchant and environment; `keys list` shows the keys"
            )
        skipped_tenants = await _resolve_left_out_tenants(reconciler, leave_out)
        tenants = [tenant for tenant in tenants if tenant not in skipped_tenants]
        report = await reconciler.reconcile(tenants, progress, was_restored=was_restored)
        report.unreadable_objects = await _add_leave_out_advice(
            reconciler, report.unreadable_objects
        )
        # A write in doubt is a finding: what it changed cannot be compared.
        in_doubt = [
            write for write in await load_in_doubt_writes(store) if write.record.tenant in tenants
        ]
        # Batches are started again only after one run has compared everything.
        is_complete = merchant is None and environment is None and not report.unreadable_objects
        result = ReconcileResult(
            report, in_doubt, skipped_tenants, was_restored, was_restored and is_complete
        )
        if result.has_frozen_writes:
            # Freeze before clearing: clients retry refused starts all the time, and one could get
            # through.
            await freeze_writes(store, Tenant("", ""))
        if result.is_cleared:
            result.warning = await _mark_state_up_to_date(settings, store)
        return result


async def _resolve_left_out_tenants(
    reconciler: Reconciler, merchants: frozenset[str]
) -> list[Tenant]:
    if not merchants:
        return []
    tenants = [tenant for tenant in await reconciler.list_tenants() if tenant.merchant in merchants]
    if unknown_merchants := merchants - {tenant.merchant for tenant in tenants}:
        raise ActionRefused(
            f"there is no merchant {min(unknown_merchants)}; `keys list` shows the merchants"
        )
    tenants_without_keys = await reconciler.find_tenants_without_active_keys()
    # A skipped merchant is not compared, so it must not be able to start batches.
    if active_tenants := [tenant for tenant in tenants if tenant not in tenants_without_keys]:
        raise ActionRefused(
            f"a key of {active_tenants[0]} is active and could start a batch that was changed "
            "after the backup; fix its credentials or revoke its keys, then run this command again"
        )
    return tenants


async def _add_leave_out_advice(reconciler: Reconciler, unreadable: list[Finding]) -> list[Finding]:
    findings = []
    tenants = await reconciler.find_tenants_without_active_keys() if unreadable else set()
    for finding in unreadable:
        option = f"--leave-out {finding.owner.merchant}"
        hint = f". All its keys are revoked, so {option} can skip it"
        hint = hint if finding.owner in tenants else ""
        findings.append(replace(finding, advice=f"{finding.advice}{hint}"))
    return findings


async def _mark_state_up_to_date(settings: Settings, store: Store) -> str:
    """Marks the state as up to date, also for running gateways; returns a warning, if any."""
    path = settings.state.restore_mark_path
    try:
        mark = read_high_water_mark_file(path)
    # A damaged mark file is replaced below.
    except StoreUnavailable:
        mark = NO_MARK
    mark = await clear_restored_flag(store, mark)
    try:
        write_high_water_mark_if_greater(path, mark)
    except OSError as error:
        return f"{path} cannot be written ({error.strerror}), so a later restore may go unnoticed"
    return ""
