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
from gateway.compare.mask import Redactor, Shown
from gateway.compare.operations import Asked
from gateway.compare.report_schema import (
    EXIT_CODES,
    FORMAT,
    VERSION,
    AnInput,
    ARule,
    ASide,
    Counts,
    Group,
    Instance,
    Line,
    Operation,
    Report,
    Result,
    Unasked,
    Value,
)
from gateway.compare.rules import Id, Rule
from gateway.compare.run import Run
from gateway.compare.steps import Input


def build_report(run: Run) -> Report:
    findings = run.findings
    differences = _sorted(findings.differences())
    counts = _counts(run, len(differences))
    result = _result(run, counts)
    return {
        "format": FORMAT,
        "version": VERSION,
        "result": result,
        "exit_code": EXIT_CODES[result],
        "sentence": _sentence(run, counts, result),
        "remarks": [*_remarks(run, counts)],
        "began": f"{run.began:%Y-%m-%dT%H:%M:%SZ}",
        "seconds": round(run.seconds, 3),
        "control": _side(run.control),
        "candidate": _side(run.candidate),
        "inputs": [_input(one) for one in run.inputs],
        "writes": "sent" if run.options.allow_writes else "not sent",
        "values": "shown" if findings.viewer.eye.sees_all else "masked",
        "noise_measured": run.options.measure_noise,
        "counts": counts,
        "operations": _operations(findings),
        "differences": [_group(one) for one in differences],
        "noise": [_group(one) for one in _sorted(findings.noise())],
        "not_sent": _unasked(findings.not_sent),
        "skipped": _unasked(findings.skipped),
        "failed": _unasked(findings.failed),
        "ids": {
            "paired": run.pairing.count,
            "spelled_differently": run.pairing.spelled_differently,
        },
        "headers": sorted({name for one in run.inputs for name in _headers(one)}),
        "rules": _rules(run),
    }


def _headers(one: Input) -> Iterable[str]:
    return (name for step in one.steps for name in step.rules.headers)


def _result(run: Run, counts: Counts) -> Result:
    if counts["differences"]:
        return "different"
    unmet = run.stopped or counts["failed"] or any(not one.unsent for one in run.findings.skipped)
    return "could not run" if unmet or not counts["compared"] else "equal"


def _sentence(run: Run, counts: Counts, result: Result) -> str:
    compared = _many(counts["compared"], "answer")
    if result == "different":
        kinds = _many(counts["differences"], "difference")
        return f"{kinds}, in {counts['different']} of {compared}."
    if result == "equal":
        return f"Equal: {compared} of each side {'say' if counts['compared'] > 1 else 'says'} the same."
    if run.stopped:
        return f"The comparison could not run: {run.stopped}."
    if counts["compared"]:
        missed = counts["failed"] + counts["skipped"]
        return f"Incomplete: {missed} of {_many(counts['steps'], 'step')} could not be compared; the rest is equal."
    return "Nothing was compared."


def _remarks(run: Run, counts: Counts) -> Iterator[str]:
    """Yields what was left out, and what makes the result less reliable."""
    if run.stopped and counts["compared"]:
        yield f"The comparison ended early: {run.stopped}."
    if counts["not_sent"]:
        needing = sum(one.unsent for one in run.findings.skipped)
        also = (
            f", and {_many(needing, 'step')} that {'need' if needing > 1 else 'needs'} their results"
            if needing
            else ""
        )
        yield f"Not sent: {_many(counts['not_sent'], 'write')}{also}. --allow-writes sends them to both sides."
    if counts["failed"]:
        yield f"No answer: {_many(counts['failed'], 'step')}, from one side or both."
    unmet = sum(not one.unsent for one in run.findings.skipped)
    if unmet:
        yield f"Skipped: {_many(unmet, 'step')}, for lack of a value from an earlier answer."
    for one in run.inputs:
        for why, count in one.left_out.items():
            yield f"Left out of {one.name}: {_many(count, 'entry', 'entries')}, {why}."
    if run.pairing.spelled_differently and not run.options.allow_writes:
        yield (
            f"{_many(run.pairing.spelled_differently, 'id')} of {run.pairing.count} differ between "
            "the two sides. Import them (ids import) if clients stored ids of control; "
            "--ids same reports each as a difference."
        )
    yield from _doubts(run)


def _doubts(run: Run) -> Iterator[str]:
    statuses = [pair for one in run.findings.tallies.values() for pair in one.statuses.items()]
    for index, side in enumerate((run.control, run.candidate)):
        limited = sum(count for pair, count in statuses if pair[index] == 429)
        if limited:
            yield f"{side.name.title()} answered 429 {_many(limited, 'time')}: its rate limit was reached."
        if _is_readable_on_the_way(side.url):
            yield f"{side.name.title()} is called without TLS: its API key is sent in clear text."
    moved = sum(count for pair, count in statuses if all(300 <= one < 400 for one in pair))
    if moved:
        yield (
            f"Both sides redirected {_many(moved, 'time')}. Redirects are not followed: "
            "give the addresses that they lead to."
        )
    good = sum(count for pair, count in statuses if all(200 <= one < 300 for one in pair))
    if statuses and not good:
        yield "No answer was a success on both sides: only error responses were compared."


def _is_readable_on_the_way(url: str) -> bool:
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        is_near = ip_address(host).is_loopback
    except ValueError:
        is_near = host == "localhost"
    return parts.scheme == "http" and not is_near


def _counts(run: Run, differences: int) -> Counts:
    findings = run.findings
    compared = sum(one.compared for one in findings.tallies.values())
    different = sum(findings.different(one) for one in findings.tallies.values())
    return {
        "steps": sum(len(one.steps) for one in run.inputs),
        "compared": compared,
        "equal": compared - different,
        "different": different,
        "not_sent": len(findings.not_sent),
        "skipped": len(findings.skipped),
        "failed": len(findings.failed),
        "differences": differences,
    }


def _operations(findings: Findings) -> list[Operation]:
    return [
        {
            "operation": one.asked.name,
            "request": one.asked.title,
            "compared": one.compared,
            "equal": one.compared - findings.different(one),
            "different": findings.different(one),
            "statuses": {f"{a}/{b}": count for (a, b), count in sorted(one.statuses.items())},
        }
        for one in sorted(findings.tallies.values(), key=lambda one: _rank(one.asked))
    ]


def _rank(asked: Asked) -> tuple[bool, str, str]:
    return (not asked.name, asked.path, asked.method)


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda one: (_rank(one.asked), -one.answers, one.place, one.kind))


def _group(one: Finding) -> Group:
    return {
        "operation": one.asked.name,
        "request": one.asked.title,
        "kind": one.kind,
        "path": one.place,
        "field": _field(one.place),
        "count": one.count,
        "answers": one.answers,
        "notes": dict(one.notes.most_common(5)),
        "examples": [_instance(example) for example in one.examples],
    }


def _field(place: str) -> str:
    """The last part of a normal form: the field name."""
    if place == paths.BODY or place.startswith("@header."):
        return place.removeprefix("@header.")
    return place.rpartition(".")[2].removesuffix("[]") or place


def _instance(one: Example) -> Instance:
    return {
        "input": one.source,
        "step": one.number,
        "name": one.name,
        "request": one.request,
        "control_status": one.statuses[0],
        "candidate_status": one.statuses[1],
        "control_path": one.path,
        "candidate_path": one.there,
        "control": _value(one.control),
        "candidate": _value(one.candidate),
        "note": one.note,
        "around": [_line(row) for row in one.rows],
        "around_left_out": (one.before, one.after),
    }


def _line(row: Row) -> Line:
    return {
        "name": row.name,
        "control": _value(row.control),
        "candidate": _value(row.candidate),
        "differs": row.differs,
        "is_it": row.is_it,
        "overlooked": row.overlooked,
    }


def _value(shown: Shown) -> Value:
    return {
        "type": shown.kind,
        "text": shown.text,
        "parts": [{"text": one.text, "differs": one.differs} for one in shown.pieces],
    }


def _side(side: Side) -> ASide:
    times = sorted(side.times)
    return {
        "url": side.url,
        "answers": len(times),
        "median_ms": round(times[len(times) // 2] * 1000, 1) if times else None,
        "slowest_ms": round(times[-1] * 1000, 1) if times else None,
    }


def _input(one: Input) -> AnInput:
    return {
        "name": one.name,
        "kind": one.kind,
        "title": one.title,
        "steps": len(one.steps),
        "left_out": dict(one.left_out),
    }


def _unasked(those: Sequence[NotCompared]) -> list[Unasked]:
    return [
        {
            "input": one.source,
            "step": one.number,
            "name": one.name,
            "request": one.request,
            "why": one.why,
        }
        for one in those
    ]


def _rules(run: Run) -> list[ARule]:
    every: dict[Rule, None] = {}
    for one in run.inputs:
        for step in one.steps:
            # A dict keeps the order of rules and drops those that several steps share.
            every |= dict.fromkeys(
                (step.rules if run.options.allow_writes else step.rules.for_reads).rules
            )
    return [
        {
            "kind": rule.kind,
            "path": rule.path,
            "operation": rule.operation,
            "does": rule.told,
            "reason": rule.reason,
            "origin": rule.origin,
            "used": run.findings.excused[rule],
        }
        for rule in every
        if run.pairing.apart or not isinstance(rule, Id)
    ]


def _many(count: int, one: str, more: str = "") -> str:
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"


def redact_api_keys(report: Report, eye: Redactor) -> Report:
    """Removes the API keys of both sides from all texts of a report.

    File names, titles and addresses come from outside and may contain one.
    """

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return eye.plain(value)
        if isinstance(value, dict):
            return {clean(key): clean(item) for key, item in value.items()}
        return [clean(item) for item in value] if isinstance(value, list | tuple) else value

    return cast("Report", clean(report))
