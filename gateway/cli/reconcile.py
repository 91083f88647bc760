"""`payout-gateway reconcile`: compares the gateway's records with the service, with reads only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import click

from gateway.cli.errors import CommandError
from gateway.cli.options import (
    config_option,
    environment_option,
    json_option,
    merchant_option,
    print_json,
)
from gateway.cli.output import run_to_completion
from gateway.cli.progress import show_progress
from gateway.config.extensions import check_c_extensions
from gateway.config.settings import Settings
from gateway.operator.in_doubt_writes import WriteInDoubt, load_in_doubt_writes
from gateway.operator.ledger_reconciliation import (
    Finding,
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

LOST_DATA_ADVICE = (
    "the gateway does not know what happened after the backup: compare it in the dashboard before "
    "you start any batch that may have been edited or started since"
)

FROZEN_NOTICE = (
    "there are findings, so all writes are now frozen. Check the findings, then run "
    "`payout-gateway unfreeze --all`; after that, batches are started again"
)

MAX_INFORMATIONAL_LINES = 10

NOTHING_COMPARED = "There was no batch and no deleted recipient to compare."

COUNT_LABELS = {
    "batches": "batches",
    "abandoned": "superseded batches",
    "recipients": "deleted recipients",
}


@dataclass(slots=True)
class ReconcileResult:
    """The result of a reconciliation. ``is_cleared``: the state counts as up to date again."""

    report: ReconciliationReport
    in_doubt: list[WriteInDoubt] = field(default_factory=list)
    skipped_tenants: list[Tenant] = field(default_factory=list)
    was_restored: bool = False
    is_cleared: bool = False

    @property
    def data_loss_findings(self) -> list[Finding]:
        """Findings that may result from data that a restored state lost."""
        return (
            [*self.report.unknown_batches, *self.report.tenants_without_list]
            if self.was_restored
            else []
        )

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


@click.command()
@merchant_option
@environment_option
@click.option(
    "--leave-out",
    multiple=True,
    metavar="MERCHANT",
    help="Skip a merchant whose keys are all revoked. Can be repeated.",
)
@json_option
@config_option
def reconcile(
    *,
    merchant: str | None,
    environment: str | None,
    leave_out: tuple[str, ...],
    as_json: bool,
    settings: Settings,
) -> None:
    """Compare the gateway's records with the service, with reads only.

    Exit code 0: they agree. 1: there are findings to check. 2: the comparison failed or is
    incomplete.

    Nothing is changed at the service. If a batch was started elsewhere, the gateway's records are
    updated. After a restore, no batch is started until you have run this command once for every
    merchant and environment and everything could be read. If there are findings then, all writes
    are frozen until `unfreeze --all`.

    If the service no longer accepts a merchant's credentials, revoke all keys of the merchant and
    skip it with --leave-out. Before you import a key for it again, check its open batches in the
    service's dashboard.
    """
    result = run_to_completion(
        _reconcile_and_clear_restored_flag(settings, merchant, environment, frozenset(leave_out))
    )
    if as_json:
        print_json(_build_result_json(result))
    else:
        _print_reconcile_result(result)
    click.get_current_context().exit(result.exit_code)


async def _reconcile_and_clear_restored_flag(
    settings: Settings, merchant: str | None, environment: str | None, leave_out: frozenset[str]
) -> ReconcileResult:

    # A configuration that cannot run must fail before any call.
    check_c_extensions()
    check_settings_are_runnable(settings)
    async with (
        open_store(settings.state, create=False) as store,
        open_reconciler(settings, store) as reconciler,
    ):
        was_restored = await is_restored(store, settings.state.restore_mark_path)
        tenants = await reconciler.list_tenants(merchant, environment)
        if not tenants and (merchant or environment):
            raise CommandError(
                "no key has this merchant and environment; `keys list` shows the keys"
            )
        skipped_tenants = await _resolve_left_out_tenants(reconciler, leave_out)
        tenants = [tenant for tenant in tenants if tenant not in skipped_tenants]
        with show_progress("Comparing") as report_progress:
            report = await reconciler.reconcile(tenants, report_progress, was_restored=was_restored)
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
            await _mark_state_up_to_date(settings, store)
        return result


async def _resolve_left_out_tenants(
    reconciler: Reconciler, merchants: frozenset[str]
) -> list[Tenant]:
    if not merchants:
        return []
    tenants = [tenant for tenant in await reconciler.list_tenants() if tenant.merchant in merchants]
    if unknown_merchants := merchants - {tenant.merchant for tenant in tenants}:
        raise CommandError(
            f"there is no merchant {min(unknown_merchants)}; `keys list` shows the merchants"
        )
    tenants_without_keys = await reconciler.find_tenants_without_active_keys()
    # A skipped merchant is not compared, so it must not be able to start batches.
    if active_tenants := [tenant for tenant in tenants if tenant not in tenants_without_keys]:
        raise CommandError(
            f"a key of {active_tenants[0]} is active and could start a batch that was changed "
            "after the backup; fix its credentials or revoke its keys, then run this command again"
        )
    return tenants


async def _add_leave_out_advice(reconciler: Reconciler, unreadable: list[Finding]) -> list[Finding]:
    tenants_without_keys = (
        await reconciler.find_tenants_without_active_keys() if unreadable else set()
    )
    return [
        replace(
            finding,
            advice=f"{finding.advice}. All its keys are revoked, so --leave-out {finding.owner.merchant} can "
            "skip it",
        )
        if finding.owner in tenants_without_keys
        else finding
        for finding in unreadable
    ]


async def _mark_state_up_to_date(settings: Settings, store: Store) -> None:
    """Marks the state as up to date, also for running gateways."""
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
        click.echo(
            f"Warning: {path} cannot be written ({error.strerror}), so a later restore may go "
            "unnoticed",
            err=True,
        )


# Output


def _build_result_json(result: ReconcileResult) -> dict[str, Any]:
    report = result.report
    return {
        "ok": result.exit_code == 0,
        "complete": not report.unreadable_objects,
        "restored": result.was_restored,
        "cleared": result.is_cleared,
        "frozen": result.has_frozen_writes,
        "compared": report.counts,
        "findings": [
            _build_finding_json(finding)
            for finding in [
                *_sort_findings(report.findings),
                *(
                    replace(finding, advice=LOST_DATA_ADVICE)
                    for finding in result.data_loss_findings
                ),
            ]
        ],
        # The names of some JSON keys are older than those in the code; scripts read them.
        "unsettled": [
            {**write.record.tenant._asdict(), "write": write.id, "what_to_do": write.to_do}
            for write in result.in_doubt
        ],
        "unknown": [_build_finding_json(finding) for finding in report.unknown_batches],
        "unreadable": [_build_finding_json(finding) for finding in report.unreadable_objects],
        "not_listed": [finding.owner._asdict() for finding in report.tenants_without_list],
        "left_out": [tenant._asdict() for tenant in result.skipped_tenants],
    }


def _build_finding_json(finding: Finding) -> dict[str, Any]:
    return {
        **finding.owner._asdict(),
        "kind": finding.kind,
        "id": finding.id,
        "upstream": finding.upstream,
        "alert": finding.alert,
        "recorded": finding.recorded,
        "says": finding.description,
        "what_to_do": finding.advice,
    }


def _sort_findings(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: (not finding.alert, finding.owner, finding.id))


def _print_reconcile_result(result: ReconcileResult) -> None:
    report = result.report
    for finding in _sort_findings(report.findings):
        click.echo(f"{'ALERT' if finding.alert else 'Finding'}: {_format_finding(finding)}")
    for finding in result.data_loss_findings:
        click.echo(f"Finding: {_format_finding(replace(finding, advice=LOST_DATA_ADVICE))}")
    for write in result.in_doubt:
        click.echo(f"Finding: {write.record.tenant}: write {write.id} is in doubt: {write.to_do}")
    for finding in report.unreadable_objects:
        click.echo(f"Unreadable: {_format_finding(finding)}")
    informational_findings = (
        [] if result.data_loss_findings else [*report.unknown_batches, *report.tenants_without_list]
    )
    for finding in informational_findings[:MAX_INFORMATIONAL_LINES]:
        click.echo(f"For information: {_format_finding(finding)}")
    if hidden_count := len(informational_findings[MAX_INFORMATIONAL_LINES:]):
        click.echo(f"For information: {hidden_count} more of these; --json lists all")
    for owner in result.skipped_tenants:
        click.echo(f"Left out: {owner}, whose keys are all revoked")
    counts = ", ".join(
        f"{name}: {report.counts[kind]}"
        for kind, name in COUNT_LABELS.items()
        if kind in report.counts
    )
    if result.exit_code or informational_findings:
        click.echo(_format_totals(result, len(informational_findings)))
    click.echo(f"Compared. {counts[:1].upper()}{counts[1:]}." if counts else NOTHING_COMPARED)
    if result.was_restored:
        click.echo(f"The state was restored: {_describe_batch_starts(result)}.")


def _format_totals(result: ReconcileResult, informational_count: int) -> str:
    """Counts the findings by kind, the most serious first."""
    findings = [*result.report.findings, *result.data_loss_findings]
    kinds = Counter(finding.kind.replace("_", " ") for finding in _sort_findings(findings))
    totals = [f"{kind} {count}" for kind, count in kinds.items()]
    totals += [f"in doubt {len(result.in_doubt)}"] * bool(result.in_doubt)
    totals += [f"unreadable {len(result.report.unreadable_objects)}"] * bool(
        result.report.unreadable_objects
    )
    for_information = f"; {informational_count} for information" if informational_count else ""
    return f"Findings: {', '.join(totals) or 'none'}{for_information}."


def _describe_batch_starts(result: ReconcileResult) -> str:
    """Says whether batches are started on a restored state, and what to do if not."""
    if result.is_cleared:
        return FROZEN_NOTICE if result.has_frozen_writes else "batches are started again"
    if result.report.unreadable_objects:
        return "no batch is started yet, because something could not be read"
    return "no batch is started yet; run `reconcile` without --merchant and --environment"


def _format_finding(finding: Finding) -> str:
    service_id = f" ({finding.upstream} at the service)" if finding.upstream else ""
    return f"{finding.owner}: {finding.id}{service_id}: {finding.description}; {finding.advice}"
