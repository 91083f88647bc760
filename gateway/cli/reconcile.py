"""`payout-gateway reconcile`: compares the gateway's records with the service, with reads only."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any

import click

from gateway.cli import options, output
from gateway.config.settings import Settings
from gateway.operator.ledger_reconciliation import Finding, ReconciliationReport
from gateway.operator.reconciliation_run import reconcile_and_clear_restored_flag

LOST_DATA_ADVICE = (
    "the gateway does not know what happened after the backup: compare it in the dashboard before "
    "you start any batch that may have been edited or started since"
)

FROZEN_NOTICE = (
    "there are findings, so all writes are now frozen. Check the findings, then run "
    "`payout-gateway unfreeze --all`; after that, batches are started again"
)

MAX_INFORMATIONAL_LINES = 10
MAX_UNREADABLE_LINES = 3
"""For each merchant and environment: if the service is down, no batch can be read."""

NOTHING_COMPARED = "There was no batch and no deleted recipient to compare."
NOTHING_READABLE = "Nothing was compared, because nothing could be read."

COUNT_LABELS = {
    "batches": "batches",
    "abandoned": "superseded batches",
    "recipients": "deleted recipients",
}


@click.command()
@options.merchant_option
@options.environment_option
@options.json_option
@options.config_option
def reconcile(
    *, merchant: str | None, environment: str | None, as_json: bool, settings: Settings
) -> None:
    """Compare the gateway's records with the service, with reads only.

    Exit code 0: they agree. 1: there are findings to check. 2: the comparison failed or is
    incomplete.

    Nothing is changed at the service. If a batch was started elsewhere, the gateway's records are
    updated. After a restore, no batch is started until you have run this command once for every
    merchant and environment and everything could be read. That run also records the batches that
    the service lists and the gateway did not know. If there are findings then, all writes are frozen
    until `unfreeze --all`.

    If the service no longer accepts a merchant's credentials, revoke all keys of the merchant: it is
    left out then, and after a restore its writes are frozen. Before you import a key for it again
    and unfreeze it, check its open batches in the service's dashboard.
    """
    with output.show_progress("Comparing") as report_progress:
        work = reconcile_and_clear_restored_flag(settings, merchant, environment, report_progress)
        report = output.run_to_completion(work)
    if report.warning:
        click.echo(f"Warning: {report.warning}", err=True)
    if as_json:
        options.print_json(_build_result_json(report))
    else:
        _print_reconcile_result(report)
    click.get_current_context().exit(report.exit_code)


# Output


def _build_result_json(report: ReconciliationReport) -> dict[str, Any]:
    return {
        "ok": report.exit_code == 0,
        "complete": not report.unreadable_objects,
        "restored": report.was_restored,
        "cleared": report.is_cleared,
        "frozen": report.has_frozen_writes,
        "compared": report.counts,
        "findings": list(map(_build_finding_json, _list_findings(report))),
        "unsettled": [
            {**write.record.tenant._asdict(), "write": write.id, "what_to_do": write.to_do}
            for write in report.in_doubt
        ],
        "unknown": [_build_finding_json(finding) for finding in report.unknown_batches],
        "unreadable": [_build_finding_json(finding) for finding in report.unreadable_objects],
        "not_listed": [finding.owner._asdict() for finding in report.tenants_without_list],
        "left_out": [tenant._asdict() for tenant in report.skipped_tenants],
    }


def _build_finding_json(finding: Finding) -> dict[str, Any]:
    return {
        **finding.owner._asdict(),
        **{
            name: getattr(finding, name) for name in ("kind", "id", "upstream", "alert", "recorded")
        },
        "says": finding.description,
        "what_to_do": finding.advice,
    }


def _list_findings(report: ReconciliationReport) -> list[Finding]:
    """Lists the differences, alerts first, and then what a restored state may have lost."""
    differences = sorted(report.findings, key=lambda each: (not each.alert, each.owner, each.id))
    lost = [replace(finding, advice=LOST_DATA_ADVICE) for finding in report.data_loss_findings]
    return differences + lost


def _print_reconcile_result(report: ReconciliationReport) -> None:
    findings = _list_findings(report)
    for finding in findings:
        click.echo(f"{'ALERT' if finding.alert else 'Finding'}: {_format_finding(finding)}")
    for write in report.in_doubt:
        click.echo(f"Finding: {write.record.tenant}: write {write.id} is in doubt: {write.to_do}")
    _print_unreadable_objects(report.unreadable_objects)
    notes = [
        finding
        for finding in (*report.unknown_batches, *report.tenants_without_list)
        if finding not in report.data_loss_findings
    ]
    for finding in notes[:MAX_INFORMATIONAL_LINES]:
        click.echo(f"For information: {_format_finding(finding)}")
    if hidden_count := len(notes[MAX_INFORMATIONAL_LINES:]):
        click.echo(f"For information: {hidden_count} more of these; --json lists all")
    for owner in report.skipped_tenants:
        frozen = "; its writes are frozen now" if report.is_cleared else ""
        click.echo(f"Left out: {owner} cannot be read, and all its keys are revoked{frozen}")
    if report.exit_code or notes:
        # The most serious kind first.
        totals = Counter(finding.kind.replace("_", " ") for finding in findings)
        totals["in doubt"] += len(report.in_doubt)
        totals["unreadable"] += len(report.unreadable_objects)
        counts = ", ".join(f"{kind} {count}" for kind, count in totals.items() if count) or "none"
        click.echo(f"Findings: {counts}{f'; {len(notes)} for information' if notes else ''}.")
    labels = [(label, report.counts.get(kind)) for kind, label in COUNT_LABELS.items()]
    if text := ", ".join(f"{label}: {count}" for label, count in labels if count is not None):
        click.echo(f"Compared. {text[:1].upper()}{text[1:]}.")
    else:
        click.echo(NOTHING_READABLE if report.unreadable_objects else NOTHING_COMPARED)
    if report.was_restored:
        click.echo(f"The state was restored: {_describe_batch_starts(report)}.")


def _print_unreadable_objects(findings: Sequence[Finding]) -> None:
    by_owner = attrgetter("owner")
    for owner, group in groupby(sorted(findings, key=by_owner), key=by_owner):
        unreadable = list(group)
        for finding in unreadable[:MAX_UNREADABLE_LINES]:
            click.echo(f"Unreadable: {_format_finding(finding)}")
        if hidden_count := len(unreadable[MAX_UNREADABLE_LINES:]):
            click.echo(f"Unreadable: {owner}: {hidden_count} more of these; --json lists all")


def _describe_batch_starts(report: ReconciliationReport) -> str:
    """Says whether batches are started on a restored state, and what to do if not."""
    if report.is_cleared:
        return FROZEN_NOTICE if report.has_frozen_writes else "batches are started again"
    if report.unreadable_objects:
        return "no batch is started yet, because something could not be read"
    return "no batch is started yet; run `payout-gateway reconcile` without --merchant and --environment"


def _format_finding(finding: Finding) -> str:
    service_id = f" ({finding.upstream} at the service)" if finding.upstream else ""
    return f"{finding.owner}: {finding.id}{service_id}: {finding.description}; {finding.advice}"
