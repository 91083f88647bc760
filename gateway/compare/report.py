"""Builds the report of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address
from typing import Any, cast
from urllib.parse import urlsplit

from gateway.compare import paths
from gateway.compare.endpoints import Side
from gateway.compare.examples import Example, Row
from gateway.compare.findings import Finding, Findings, NotCompared
from gateway.compare.mask import DisplayValue, Redactor
from gateway.compare.operations import RequestedOperation
from gateway.compare.report_schema import (
    EXIT_CODES,
    FORMAT,
    VERSION,
    Counts,
    DifferenceEntry,
    ExampleEntry,
    InputEntry,
    NotComparedEntry,
    OperationEntry,
    Report,
    Result,
    RowEntry,
    RuleEntry,
    SideEntry,
    Value,
)
from gateway.compare.rules import IdRule, Rule
from gateway.compare.run import Run
from gateway.compare.steps import Input


def build_report(run: Run) -> Report:
    findings = run.findings
    differences = _sort_findings(findings.list_differences())
    counts = _count_results(run, len(differences))
    result = _decide_result(run, counts)
    return {
        "format": FORMAT,
        "version": VERSION,
        "result": result,
        "exit_code": EXIT_CODES[result],
        "sentence": _build_result_sentence(run, counts, result),
        "remarks": [*_build_remarks(run, counts)],
        "began": f"{run.started_at:%Y-%m-%dT%H:%M:%SZ}",
        "seconds": round(run.seconds, 3),
        "control": _build_side_entry(run.control),
        "candidate": _build_side_entry(run.candidate),
        "inputs": [_build_input_entry(input_file) for input_file in run.inputs],
        "writes": "sent" if run.options.allow_writes else "not sent",
        "values": "shown" if findings.example_builder.redactor.is_unmasked else "masked",
        "noise_measured": run.options.measure_noise,
        "counts": counts,
        "operations": _build_operation_entries(findings),
        "differences": [_build_difference_entry(finding) for finding in differences],
        "noise": [
            _build_difference_entry(finding)
            for finding in _sort_findings(findings.list_noise_findings())
        ],
        "not_sent": _build_not_compared_entries(findings.not_sent),
        "skipped": _build_not_compared_entries(findings.skipped),
        "failed": _build_not_compared_entries(findings.failed),
        "ids": {
            "paired": run.id_map.count,
            "spelled_differently": run.id_map.different_pair_count,
        },
        "headers": sorted(
            {name for input_file in run.inputs for name in _list_compared_headers(input_file)}
        ),
        "rules": _build_rule_entries(run),
    }


def _list_compared_headers(input_file: Input) -> Iterable[str]:
    return (name for step in input_file.steps for name in step.rules.headers)


def _decide_result(run: Run, counts: Counts) -> Result:
    # A difference is a definite result, even if other steps failed.
    if counts["differences"]:
        return "different"
    is_incomplete = (
        run.stop_reason
        or counts["failed"]
        or any(not skipped_step.is_write_withheld for skipped_step in run.findings.skipped)
    )
    # Never "equal" if something is missing: a pipeline would pass on an incomplete comparison.
    return "could not run" if is_incomplete or not counts["compared"] else "equal"


def _build_result_sentence(run: Run, counts: Counts, result: Result) -> str:
    compared = _format_count(counts["compared"], "answer")
    if result == "different":
        found = _format_count(counts["differences"], "difference")
        return f"{found}, in {counts['different']} of {compared}."
    if result == "equal":
        return f"Equal: {f'all {compared} match' if counts['compared'] > 1 else f'{compared} matches'}."
    if run.stop_reason:
        return f"The comparison could not run: {run.stop_reason}."
    if counts["compared"]:
        missed_steps = counts["failed"] + counts["skipped"]
        return f"Incomplete: {missed_steps} of {_format_count(counts['steps'], 'step')} could not be compared; the rest is equal."
    return "Nothing was compared."


def _build_remarks(run: Run, counts: Counts) -> Iterator[str]:
    """Yields what was left out, and what makes the result less reliable."""
    if run.stop_reason and counts["compared"]:
        yield f"The comparison ended early: {run.stop_reason}."
    if counts["not_sent"]:
        dependent_count = sum(
            skipped_step.is_write_withheld for skipped_step in run.findings.skipped
        )
        dependents = (
            f", and {_format_count(dependent_count, 'step')} that {'need' if dependent_count > 1 else 'needs'} their results"
            if dependent_count
            else ""
        )
        yield f"Not sent: {_format_count(counts['not_sent'], 'write')}{dependents}. --allow-writes sends them to both sides."
    if counts["failed"]:
        yield f"No answer: {_format_count(counts['failed'], 'step')}, from one side or both."
    skipped_count = sum(not skipped_step.is_write_withheld for skipped_step in run.findings.skipped)
    if skipped_count:
        yield f"Skipped: {_format_count(skipped_count, 'step')}, for lack of a value from an earlier answer."
    for input_file in run.inputs:
        for reason, count in input_file.omitted_counts.items():
            yield f"Left out of {input_file.name}: {_format_count(count, 'entry', 'entries')}, {reason}."
    if run.id_map.different_pair_count and not run.options.allow_writes:
        yield (
            f"{_format_count(run.id_map.different_pair_count, 'id')} of {run.id_map.count} differ between "
            "the two sides. Import them (ids import) if clients stored ids of control; "
            "--ids same reports each as a difference."
        )
    yield from _build_warnings(run)


def _build_warnings(run: Run) -> Iterator[str]:
    statuses = [pair for tally in run.findings.tallies.values() for pair in tally.statuses.items()]
    for index, side in enumerate((run.control, run.candidate)):
        rate_limited = sum(count for pair, count in statuses if pair[index] == 429)
        # Otherwise two refusals would look like two equal answers.
        if rate_limited:
            yield f"{side.name.title()} answered 429 {_format_count(rate_limited, 'time')}: its rate limit was reached."
        if _is_unencrypted_remote_url(side.url):
            yield f"{side.name.title()} is called without TLS: its API key is sent in clear text."
    redirected = sum(
        count for pair, count in statuses if all(300 <= status < 400 for status in pair)
    )
    # Both sides redirect alike, so that nothing differs and nothing was compared either.
    if redirected:
        yield (
            f"Both sides redirected {_format_count(redirected, 'time')}. Redirects are not followed: "
            "give the addresses that they lead to."
        )
    successful = sum(
        count for pair, count in statuses if all(200 <= status < 300 for status in pair)
    )
    if statuses and not successful:
        yield "No answer was a success on both sides: only error responses were compared."


def _is_unencrypted_remote_url(url: str) -> bool:
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        is_local = ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    return parts.scheme == "http" and not is_local


def _count_results(run: Run, difference_count: int) -> Counts:
    findings = run.findings
    compared = sum(tally.compared for tally in findings.tallies.values())
    different = sum(findings.count_different_answers(tally) for tally in findings.tallies.values())
    return {
        "steps": sum(len(input_file.steps) for input_file in run.inputs),
        "compared": compared,
        "equal": compared - different,
        "different": different,
        "not_sent": len(findings.not_sent),
        "skipped": len(findings.skipped),
        "failed": len(findings.failed),
        "differences": difference_count,
    }


def _build_operation_entries(findings: Findings) -> list[OperationEntry]:
    return [
        {
            "operation": tally.operation.name,
            "request": tally.operation.title,
            "compared": tally.compared,
            "equal": tally.compared - findings.count_different_answers(tally),
            "different": findings.count_different_answers(tally),
            "statuses": {
                f"{control_status}/{candidate_status}": count
                for (control_status, candidate_status), count in sorted(tally.statuses.items())
            },
        }
        for tally in sorted(
            findings.tallies.values(), key=lambda tally: _build_sort_key(tally.operation)
        )
    ]


def _build_sort_key(operation: RequestedOperation) -> tuple[bool, str, str]:
    # Unknown operations come last; a path groups the operations of one object.
    return (not operation.name, operation.path, operation.method)


def _sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(
        findings,
        key=lambda finding: (
            _build_sort_key(finding.operation),
            -finding.answers,
            finding.path,
            finding.kind,
        ),
    )


def _build_difference_entry(finding: Finding) -> DifferenceEntry:
    return {
        "operation": finding.operation.name,
        "request": finding.operation.title,
        "kind": finding.kind,
        "path": finding.path,
        "field": _extract_field_name(finding.path),
        "count": finding.count,
        "answers": finding.answers,
        "notes": dict(finding.notes.most_common(5)),
        "examples": [_build_example_entry(example) for example in finding.examples],
    }


def _extract_field_name(normal_path: str) -> str:
    """Returns the field name at the end of a normalised path."""
    if normal_path == paths.BODY_PATH or normal_path.startswith("@header."):
        return normal_path.removeprefix("@header.")
    return normal_path.rpartition(".")[2].removesuffix("[]") or normal_path


def _build_example_entry(example: Example) -> ExampleEntry:
    return {
        "input": example.source,
        "step": example.number,
        "name": example.name,
        "request": example.request,
        "control_status": example.statuses[0],
        "candidate_status": example.statuses[1],
        "control_path": example.control_path,
        "candidate_path": example.candidate_path,
        "control": _build_value(example.control),
        "candidate": _build_value(example.candidate),
        "note": example.note,
        "around": [_build_row_entry(row) for row in example.rows],
        "around_left_out": (example.rows_before, example.rows_after),
    }


def _build_row_entry(row: Row) -> RowEntry:
    return {
        "name": row.name,
        "control": _build_value(row.control),
        "candidate": _build_value(row.candidate),
        "differs": row.differs,
        "is_it": row.is_subject,
        "overlooked": row.is_ignored,
    }


def _build_value(display: DisplayValue) -> Value:
    return {
        "type": display.kind,
        "text": display.text,
        "parts": [
            {"text": segment.text, "differs": segment.differs} for segment in display.segments
        ],
    }


def _build_side_entry(side: Side) -> SideEntry:
    durations = sorted(side.durations_seconds)
    return {
        "url": side.url,
        "answers": len(durations),
        "median_ms": round(durations[len(durations) // 2] * 1000, 1) if durations else None,
        "slowest_ms": round(durations[-1] * 1000, 1) if durations else None,
    }


def _build_input_entry(input_file: Input) -> InputEntry:
    return {
        "name": input_file.name,
        "kind": input_file.kind,
        "title": input_file.title,
        "steps": len(input_file.steps),
        "left_out": dict(input_file.omitted_counts),
    }


def _build_not_compared_entries(steps: Sequence[NotCompared]) -> list[NotComparedEntry]:
    return [
        {
            "input": step.source,
            "step": step.number,
            "name": step.name,
            "request": step.request,
            "why": step.reason,
        }
        for step in steps
    ]


def _build_rule_entries(run: Run) -> list[RuleEntry]:
    rules: dict[Rule, None] = {}
    for input_file in run.inputs:
        for step in input_file.steps:
            # A dict keeps the order of rules and drops those that several steps share.
            rules |= dict.fromkeys(
                (
                    step.rules
                    if run.options.allow_writes
                    else step.rules.rules_for_runs_without_writes
                ).rules
            )
    return [
        {
            "kind": rule.kind,
            "path": rule.path,
            "operation": rule.operation,
            "does": rule.effect,
            "reason": rule.reason,
            "origin": rule.origin,
            "used": run.findings.rule_uses[rule],
        }
        for rule in rules
        # Id rules have no effect if ids are not paired.
        if run.id_map.has_separate_ids or not isinstance(rule, IdRule)
    ]


def _format_count(count: int, singular: str, plural: str = "") -> str:
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def redact_api_keys(report: Report, redactor: Redactor) -> Report:
    """Removes the API keys of both sides from all texts of a report.

    File names, titles and addresses come from outside and may contain one.
    """

    def redact_value(value: Any) -> Any:
        if isinstance(value, str):
            return redactor.remove_api_keys(value)
        if isinstance(value, dict):
            return {redact_value(key): redact_value(item) for key, item in value.items()}
        return [redact_value(item) for item in value] if isinstance(value, list | tuple) else value

    return cast("Report", redact_value(report))
