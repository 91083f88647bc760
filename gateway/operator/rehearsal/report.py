"""The report of a rehearsal: verdicts, what is left at the service, and settings to change."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from gateway.config.settings import Settings
from gateway.observability.plurals import pluralize
from gateway.operator.rehearsal.assumptions import (
    ASSUMPTIONS,
    HANDLED,
    HOLDS,
    NOT_TRIED,
    NOTICED,
    Assumption,
    Setting,
)
from gateway.operator.rehearsal.cleanup import Leftover
from gateway.operator.rehearsal.run import OPTIONAL_PATHS, Results, Seen
from gateway.operator.rehearsal.sandbox import ENVIRONMENT
from mappings import OPERATIONS

Report = dict[str, Any]
"""The JSON document of ``rehearse --json``."""

CAPABILITY_NAME = "rehearsal"
"""The name of the row with an environment's last rehearsal, among what was learnt of its service."""

NOT_REACHED: Seen = (None, "the rehearsal made no call for it")


@dataclass(frozen=True, slots=True)
class LastRehearsal:
    """The last rehearsal of an environment, for `doctor` and the console."""

    verdict: str
    is_ok: bool
    at: datetime


def parse_last_rehearsal(row: Mapping[str, Any] | None) -> LastRehearsal | None:
    """Parses the row ``CAPABILITY_NAME``; None if there was no rehearsal."""
    if not row:
        return None
    return LastRehearsal(row["verdict"], row["is_ok"], datetime.fromtimestamp(row["at"], UTC))


def build_report(results: Results, left: Iterable[Leftover], stop_reason: str) -> Report:
    assumptions = [_build_assumption_row(assumption, results) for assumption in ASSUMPTIONS]
    operations = [
        {
            "name": operation.name,
            "request": f"{operation.method} /v1{re.sub('[<>]', '', operation.path)}",
            "outcome": {True: "ok", False: "failed", None: NOT_TRIED}[is_ok],
            "seen": seen,
        }
        for operation in OPERATIONS
        for is_ok, seen in [results.operations.get(operation.name, NOT_REACHED)]
    ]
    counts = {
        verdict: sum(row["verdict"] == verdict for row in assumptions)
        for verdict in (NOTICED, HANDLED, NOT_TRIED, HOLDS)
    }
    failed_count = sum(row["outcome"] == "failed" for row in operations)
    is_noticed = bool(counts[NOTICED] or failed_count)
    return {
        "verdict": _format_verdict(counts, failed_count, stop_reason),
        "exit_code": 2 if stop_reason else int(is_noticed),
        "environment": ENVIRONMENT,
        "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "counts": counts,
        "failed_operations": failed_count,
        "assumptions": assumptions,
        "operations": operations,
        "left": [asdict(item) for item in left],
    }


def _build_assumption_row(assumption: Assumption, results: Results) -> dict[str, Any]:
    holds, seen = results.assumptions.get(assumption.name, NOT_REACHED)
    difference = NOTICED if assumption.is_noticed else HANDLED
    return {
        "name": assumption.name,
        "presumed": assumption.statement,
        "seen": seen,
        "if_different": assumption.effect,
        "clients_could_notice": assumption.is_noticed,
        "verdict": {True: HOLDS, False: difference, None: NOT_TRIED}[holds],
    }


def _format_verdict(counts: dict[str, int], failed_count: int, stop_reason: str) -> str:
    if stop_reason:
        return f"not finished: {stop_reason}"
    parts = []
    if counts[NOTICED]:
        parts.append(f"{pluralize(counts[NOTICED], 'difference')} that clients would notice")
    if failed_count:
        parts.append(f"{failed_count} of {len(OPERATIONS)} operations failed")
    text = ", ".join(parts) or "clients would notice nothing"
    handled, not_tried = counts[HANDLED], counts[NOT_TRIED]
    return f"{text}; {counts[HOLDS]} hold, {handled} differ and are handled, {not_tried} not tried"


def propose_settings(report: Report, settings: Settings, config_text: str) -> str:
    """Returns a diff of the configuration with the settings that suit the service.

    It has no unchanged lines, which may contain secrets; it is empty if nothing is to change.
    """
    verdicts = {row["name"]: row["verdict"] for row in report["assumptions"]}
    offered = [
        assumption.setting
        for assumption in ASSUMPTIONS
        if assumption.setting and verdicts[assumption.name] in (HANDLED, NOTICED)
    ]
    if all(verdicts[name] == HANDLED for name in OPTIONAL_PATHS):
        offered.append(("upstream", "inferred_operations", "avoid"))
    lines = config_text.splitlines()
    for section, key, value in offered:
        if getattr(getattr(settings, section), key) != value:
            lines = _set_toml_key(lines, (section, key, value))
    names = ("gateway.toml", "gateway.toml (proposed)")
    diff = difflib.unified_diff(config_text.splitlines(), lines, *names, n=0, lineterm="")
    return "\n".join(diff)


def render_rehearsal_page(report: Report) -> str:
    """Renders the report as one self-contained HTML page."""
    template = files("gateway.operator.rehearsal").joinpath("page.html.j2").read_text("utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(template).render(report=report)


def _set_toml_key(lines: list[str], setting: Setting) -> list[str]:
    section, key, value = setting
    line = f"{key} = {json.dumps(value)}"
    if f"[{section}]" not in lines:
        return [*lines, f"[{section}]", line]
    start = lines.index(f"[{section}]") + 1
    end = next((n for n in range(start, len(lines)) if lines[n].startswith("[")), len(lines))
    old = [n for n in range(start, end) if re.match(rf"{key}\s*=", lines[n])]
    return [*lines[:start], line, *(lines[n] for n in range(start, len(lines)) if n not in old)]
