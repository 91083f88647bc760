"""`payout-gateway doctor`: checks the configuration and the services, with reads only."""

from collections.abc import Sequence

import click

from gateway.cli import options, output
from gateway.config.settings import Settings
from gateway.observability.plurals import pluralize
from gateway.operator.doctor import Finding, run_doctor

COLOURS = {"error": "red", "warning": "yellow", "skipped": "cyan", "ok": "green"}


@click.command()
@options.json_option
@click.option("--verbose", is_flag=True, help="Show passed and skipped checks in full.")
@options.config_option
def doctor(*, as_json: bool, verbose: bool, settings: Settings) -> None:
    """Check this machine, the state and each environment's service, with reads only.

    Exit code 1 if any check fails; the first line says what that means for clients.
    """
    findings = output.run_to_completion(run_doctor(settings), "Checking")
    # Neither a warning nor a skipped check fails: both may be intended.
    has_no_failure = all(finding.state != "error" for finding in findings)
    if as_json:
        options.print_json(
            {"ok": has_no_failure, "findings": list(map(_build_finding_json, findings))}
        )
    else:
        click.echo(format_verdict(findings))
        print_findings(findings, is_complete=verbose)
    if not has_no_failure:
        click.get_current_context().exit(1)


def format_verdict(findings: Sequence[Finding]) -> str:
    """Says in one line whether a gateway can serve clients."""
    errors = [finding for finding in findings if finding.state == "error"]
    warnings = sum(finding.state == "warning" for finding in findings)
    suffix = f"; {pluralize(warnings, 'warning')}" if warnings else ""
    if errors:
        consequences = " ".join(dict.fromkeys(finding.consequence for finding in errors))
        return f"NOT READY: {pluralize(len(errors), 'error')}{suffix}. {consequences}"
    # Not "clients are served": no gateway need be running, and a freeze or a brownout is a warning.
    return f"READY: no errors{suffix}." if warnings else "READY: no errors or warnings."


def print_findings(findings: Sequence[Finding], *, is_complete: bool) -> None:
    if shown := [each for each in findings if is_complete or each.state in ("error", "warning")]:
        rows = [
            [each.state, each.environment, each.check_name, each.result, each.advice]
            for each in shown
        ]
        headers = ["state", "environment", "check", "result", "what to do"]
        output.print_table(headers, rows, COLOURS)
    if is_complete:
        return
    passed: dict[str, list[str]] = {}
    for each in findings:
        if each.state == "ok":
            passed.setdefault(each.environment, []).append(each.check_name)
    for environment, names in passed.items():
        click.echo(f"ok, {environment}: {', '.join(names)}")
    skipped_count = sum(finding.state == "skipped" for finding in findings)
    skipped = f"{pluralize(skipped_count, 'check')} skipped. " if skipped_count else ""
    click.echo(f"{skipped}--verbose shows every check.")


def _build_finding_json(finding: Finding) -> dict[str, str]:
    return {
        "environment": finding.environment,
        "looked_at": finding.check_name,
        "state": finding.state,
        "said": finding.result,
        "do": finding.advice,
    }
