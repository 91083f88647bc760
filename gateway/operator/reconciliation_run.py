"""Compares the gateway's records with the service, and ends the block of a restored state."""

from gateway.auth.key_rows import load_listed_keys
from gateway.config.settings import Settings
from gateway.observability.plurals import pluralize
from gateway.operator import UNKNOWN_TENANT, ActionRefused, ProgressCallback
from gateway.operator.in_doubt_writes import advise_to_wait, load_in_doubt_writes
from gateway.operator.ledger_reconciliation import (
    ReconciliationReport,
    open_reconciler,
)
from gateway.operator.preflight import check_settings_are_runnable
from gateway.operator.restore_check import is_restored
from gateway.storage import Store, StoreUnavailable, Tenant, open_store
from gateway.storage.audit_log import ALL_TENANTS
from gateway.storage.freezes import freeze_writes, list_freezes
from gateway.storage.restore_detection import (
    NO_MARK,
    clear_restored_flag,
    read_high_water_mark_file,
    write_high_water_mark_if_greater,
)

STILL_FROZEN = (
    "writes are frozen. If an earlier comparison froze them, this one may show as information, or no "
    "longer, what that one found: check its findings before you end the freeze (`freeze --list`)"
)


async def reconcile_and_clear_restored_flag(
    settings: Settings,
    merchant: str | None,
    environment: str | None,
    progress: ProgressCallback,
) -> ReconciliationReport:
    """Compares the tenants of a merchant and environment, or all.

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
            raise ActionRefused(UNKNOWN_TENANT)
        report = await reconciler.reconcile(tenants, progress, was_restored=was_restored)
        report.skipped_tenants = await _leave_out_revoked_tenants(store, report)
        # A write in doubt is a finding: what it changed cannot be compared.
        in_doubt = [
            write
            for write in await load_in_doubt_writes(store)
            if write.record.tenant in {*tenants} - {*report.skipped_tenants}
        ]
        unreachable = (f"service.{name}" for name in report.unreachable_environments)
        faults = dict.fromkeys(unreachable, "the service cannot be reached")
        report.in_doubt = advise_to_wait(in_doubt, faults)
        # Batches are started again only after one run has compared everything.
        is_complete = merchant is None and environment is None and not report.unreadable_objects
        report.is_cleared = was_restored and is_complete
        if report.has_frozen_writes:
            # Freeze before clearing: clients retry refused starts all the time, and one could get
            # through.
            await freeze_writes(
                store,
                ALL_TENANTS,
                f"set by reconcile: {pluralize(report.finding_count, 'finding')}",
            )
        if report.is_cleared:
            # Their batches are not compared: whoever imports a key again must check them first.
            for tenant in report.skipped_tenants:
                await freeze_writes(
                    store,
                    tenant,
                    "set by reconcile: all its keys are revoked, so it was not compared",
                )
            # Frozen before: a repeated run does not find them again.
            await reconciler.record_unknown_batches(report)
            report.warning = await _mark_state_up_to_date(settings, store)
        elif not report.has_frozen_writes and await list_freezes(store):
            report.warning = STILL_FROZEN
        return report


async def _leave_out_revoked_tenants(store: Store, report: ReconciliationReport) -> list[Tenant]:
    """Takes tenants that cannot be read out of the report if none of their keys is active.

    Nobody can start one of their batches, and the service may not accept their credentials again.
    """
    unreadable = {finding.owner for finding in report.unreadable_objects}
    keys = await load_listed_keys(store)
    left_out = sorted(unreadable - {key.tenant for key in keys if key.revoked_at is None})
    report.unreadable_objects = [
        finding for finding in report.unreadable_objects if finding.owner not in left_out
    ]
    return left_out


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
