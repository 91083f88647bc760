"""Builds the report of a comparison: what ``--json`` writes and the page renders.

``deploy/compare/README.md`` describes its fields. Within a version, fields may be added; none is
renamed, removed or given another meaning. Values are masked unless ``--show-values`` is given.
"""

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from jinja2 import Environment, StrictUndefined

from gateway.compare.differences import KIND_DESCRIPTIONS
from gateway.compare.endpoints import Side
from gateway.compare.findings import Findings, build_sort_key
from gateway.compare.masking import Redactor
from gateway.compare.rules import IdRule, Rules
from gateway.compare.run import Run
from gateway.config.value_types import is_loopback_host

FORMAT, VERSION = "payout-gateway compare", 1

EXIT_CODES = {"equal": 0, "different": 1, "could not run": 2}

Report = dict[str, Any]


def build_report(run: Run) -> Report:
    findings = run.findings
    differences = findings.list_differences()
    operations = _build_operation_entries(findings)
    counts = _count_results(run, operations, len(differences))
    result = _decide_result(run, counts)
    steps = [step for input_file in run.inputs for step in input_file.steps]
    rule_sets = [*{id(step.rules): step.rules for step in steps}.values()]
    return {
        "format": FORMAT,
        "version": VERSION,
        "result": result,
        "exit_code": EXIT_CODES[result],
        "sentence": _build_result_sentence(run, counts, result),
        "remarks": [*_build_remarks(run, counts), *_build_warnings(run)],
        "began": f"{run.started_at:%Y-%m-%dT%H:%M:%SZ}",
        "seconds": round(run.seconds, 3),
        "control": _build_side_entry(run.control),
        "candidate": _build_side_entry(run.candidate),
        "inputs": [
            {"name": each.name, "kind": each.kind, "title": each.title}
            | {"steps": len(each.steps), "left_out": dict(each.omitted_counts)}
            for each in run.inputs
        ],
        "writes": "sent" if run.allow_writes else "not sent",
        "values": "shown" if findings.redactor.is_unmasked else "masked",
        "counts": counts,
        "operations": operations,
        "differences": differences,
        "not_sent": findings.not_sent,
        "skipped": findings.skipped,
        "failed": findings.failed,
        "ids": {
            "paired": run.id_map.count,
            "spelled_differently": run.id_map.different_pair_count,
        },
        "headers": sorted({name for rules in rule_sets for name in rules.headers}),
        "rules": _build_rule_entries(run, rule_sets),
    }


def _decide_result(run: Run, counts: Mapping[str, int]) -> str:
    # A difference is a definite result, even if other steps failed.
    if counts["differences"]:
        return "different"
    lacking = counts["skipped"] - run.findings.needing_writes
    is_incomplete = run.stop_reason or counts["failed"] or lacking
    # Never "equal" if something is missing: a pipeline would pass on an incomplete comparison.
    return "could not run" if is_incomplete or not counts["compared"] else "equal"


def _build_result_sentence(run: Run, counts: Mapping[str, int], result: str) -> str:
    compared = _format_count(counts["compared"], "response")
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


def _build_remarks(run: Run, counts: Mapping[str, int]) -> Iterator[str]:
    """Yields what was left out."""
    if run.stop_reason and counts["compared"]:
        yield f"The comparison ended early: {run.stop_reason}."
    dependents = ""
    if count := run.findings.needing_writes:
        need = "need" if count > 1 else "needs"
        dependents = f", and {_format_count(count, 'step')} that {need} their results"
    if counts["not_sent"]:
        yield f"Not sent: {_format_count(counts['not_sent'], 'write')}{dependents}. --allow-writes sends them to both sides."
    if counts["failed"]:
        yield f"No response: {_format_count(counts['failed'], 'step')}, from one side or both."
    if lacking := counts["skipped"] - run.findings.needing_writes:
        yield f"Skipped: {_format_count(lacking, 'step')}, for lack of a value from an earlier response."
    for input_file in run.inputs:
        for reason, count in input_file.omitted_counts.items():
            yield f"Left out of {input_file.name}: {_format_count(count, 'entry', 'entries')}, {reason}."
    if run.id_map.different_pair_count and not run.allow_writes:
        yield (
            f"{_format_count(run.id_map.different_pair_count, 'id')} of {run.id_map.count} differ between "
            "the two sides. Import them (ids import) if clients stored ids of control; "
            "--ids same reports each as a difference."
        )


def _build_warnings(run: Run) -> Iterator[str]:
    """Yields what makes the result less reliable."""
    entries = run.findings.entry_by_operation.values()
    statuses = [pair for entry in entries for pair in entry["statuses"].items()]
    for index, side in enumerate((run.control, run.candidate)):
        rate_limited = sum(count for pair, count in statuses if pair[index] == 429)
        # Otherwise two refusals would look like two equal answers.
        if rate_limited:
            yield f"{side.name.title()} answered 429 {_format_count(rate_limited, 'time')}: its rate limit was reached."
        parts = urlsplit(side.url)
        if parts.scheme == "http" and not is_loopback_host(parts.hostname or ""):
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
    if statuses and not any(all(200 <= status < 300 for status in pair) for pair, _ in statuses):
        yield "No response was a success on both sides: only error responses were compared."


def _count_results(
    run: Run, operations: list[dict[str, Any]], difference_count: int
) -> dict[str, int]:
    findings = run.findings
    return {
        "steps": sum(len(input_file.steps) for input_file in run.inputs),
        **{
            name: sum(entry[name] for entry in operations)
            for name in ("compared", "equal", "different")
        },
        "not_sent": len(findings.not_sent),
        "skipped": len(findings.skipped),
        "failed": len(findings.failed),
        "differences": difference_count,
    }


def _build_operation_entries(findings: Findings) -> list[dict[str, Any]]:
    entries = findings.entry_by_operation
    return [
        {
            **entry,
            "equal": entry["compared"] - entry["different"],
            "statuses": {
                f"{control}/{candidate}": count
                for (control, candidate), count in sorted(entry["statuses"].items())
            },
        }
        for entry in map(entries.__getitem__, sorted(entries, key=build_sort_key))
    ]


def _build_side_entry(side: Side) -> dict[str, Any]:
    durations = sorted(side.durations_seconds)
    return {
        "url": side.url,
        "answers": len(durations),
        "median_ms": round(durations[len(durations) // 2] * 1000, 1) if durations else None,
        "slowest_ms": round(durations[-1] * 1000, 1) if durations else None,
    }


def _build_rule_entries(run: Run, rule_sets: list[Rules]) -> list[dict[str, Any]]:
    if not run.allow_writes:
        rule_sets = [rules.rules_for_runs_without_writes for rules in rule_sets]
    # A dict keeps the order of rules and drops those that several steps share.
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
        for rule in dict.fromkeys(rule for rules in rule_sets for rule in rules.rules)
        # Id rules have no effect if ids are not paired.
        if run.id_map.has_separate_ids or not isinstance(rule, IdRule)
    ]


def _format_count(count: int, singular: str, plural: str = "") -> str:
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def redact_api_keys(report: Report, redactor: Redactor) -> Report:
    """Removes the API keys of both sides from all texts of a report.

    File names, titles and addresses come from outside and may contain one.
    """
    escaped_keys = tuple(json.dumps(key)[1:-1] for key in redactor.api_keys)
    redacted: Report = json.loads(Redactor(escaped_keys).remove_api_keys(json.dumps(report)))
    return redacted


STEP_NOUNS = {"scenario": "step", "recorded traffic": "entry", "list of reads": "line"}


def render_report_page(report: Mapping[str, Any]) -> str:
    """Renders the report as one self-contained HTML page without scripts."""
    template = files("gateway.compare").joinpath("page.html.j2").read_text(encoding="utf-8")
    # StrictUndefined: a renamed field of the report must fail, not leave an empty cell.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(template).render(
        report=report,
        meanings=KIND_DESCRIPTIONS,
        places={each["name"]: STEP_NOUNS[each["kind"]] for each in report["inputs"]},
    )
