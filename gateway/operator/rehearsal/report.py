"""The report of a rehearsal: one document, which is printed, written as JSON or shown as a page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined

from gateway.config.settings import Settings
from gateway.observability.plurals import pluralize
from gateway.operator.rehearsal.checks import ASSUMPTIONS
from gateway.operator.rehearsal.run import ENVIRONMENT, RehearsalRun
from mappings import OPERATIONS
from mappings.current import ENDPOINTS

Report = dict[str, Any]
"""The JSON document of ``rehearse --json``."""

HOLDS, HANDLED, NOTICED = "holds", "differs: handled", "differs: clients would notice"
NOT_TRIED = "not tried"
"""The verdicts of an assumption."""

NOT_SEEN = (None, "no call was made for it, or none shows it")
COLOURS = {HOLDS: "green", "ok": "green", HANDLED: "yellow", NOTICED: "red", "failed": "red"}
TABLES = {
    "Assumptions": {
        "assumption": "{name}: {presumed}",
        "verdict": "{verdict}",
        "seen": "{seen}",
        "what the gateway does if it differs": "{if_different}",
        "could clients notice": "{clients_could_notice}",
    },
    "Operations": {"operation": "{request}", "outcome": "{outcome}", "seen": "{seen}"},
    "Left at the service": {"kind": "{kind}", "id": "{id}", "reason": "{reason}"},
}
"""The columns of the tables that show a report."""

CAPABILITY_NAME = "rehearsal"
"""The name of the row with an environment's last rehearsal, among what was learnt of its service."""


class LastRehearsal(NamedTuple):
    """The last rehearsal of an environment, for `doctor` and the console."""

    verdict: str
    is_ok: bool
    at: datetime


def parse_last_rehearsal(row: Mapping[str, Any] | None) -> LastRehearsal | None:
    """Parses the row ``CAPABILITY_NAME``; None if there was no rehearsal."""
    if not row:
        return None
    return LastRehearsal(row["verdict"], row["is_ok"], datetime.fromtimestamp(row["at"], UTC))


def build_report(run: RehearsalRun, left: list[dict[str, Any]], stop_reason: str) -> Report:
    run.results["country names"] = (None, "the service has no such operation")
    if not run.may_start:
        run.results["processed batches"] = run.results["start_batch"] = (None, "needs --start")
    assumptions = [
        {
            "name": row.name,
            "presumed": row.statement,
            "verdict": {True: HOLDS, None: NOT_TRIED}.get(
                holds, NOTICED if row.is_noticed else HANDLED
            ),
            "seen": seen,
            "if_different": row.effect,
            "clients_could_notice": row.is_noticed == "yes",
        }
        for row in ASSUMPTIONS
        for holds, seen in [run.results.get(row.name, NOT_SEEN)]
    ]
    operations = [
        {
            "name": operation.name,
            "request": f"{operation.method} /v1{re.sub('[<>]', '', operation.path)}",
            "outcome": {True: "ok", False: "failed", None: NOT_TRIED}[is_ok],
            "seen": seen,
        }
        for operation in OPERATIONS
        for is_ok, seen in [run.results.get(operation.name, NOT_SEEN)]
    ]
    verdicts = [row["verdict"] for row in assumptions]
    counts = {name: verdicts.count(name) for name in (NOTICED, HANDLED, NOT_TRIED, HOLDS)}
    failed_count = sum(row["outcome"] == "failed" for row in operations)
    return {
        "verdict": f"not finished: {stop_reason}"
        if stop_reason
        else _format_verdict(counts, failed_count),
        "exit_code": 2 if stop_reason else int(bool(counts[NOTICED] or failed_count)),
        "environment": ENVIRONMENT,
        "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "counts": counts,
        "failed_operations": failed_count,
        "assumptions": assumptions,
        "operations": operations,
        "left": left,
    }


def _format_verdict(counts: dict[str, int], failed_count: int) -> str:
    parts = []
    if counts[NOTICED]:
        parts.append(f"{pluralize(counts[NOTICED], 'difference')} that clients would notice")
    if failed_count:
        parts.append(f"{failed_count} of {len(OPERATIONS)} operations failed")
    text = ", ".join(parts) or "clients would notice nothing"
    handled, not_tried = counts[HANDLED], counts[NOT_TRIED]
    return f"{text}; {counts[HOLDS]} hold, {handled} differ and are handled, {not_tried} not tried"


def list_tables(report: Report) -> list[tuple[str, list[str], list[list[str]]]]:
    """Returns title, headers and rows of the tables that show a report, most urgent rows first."""
    order = {word: place for place, word in enumerate([*report["counts"], "failed", "ok"])}
    words = {True: "yes", False: "no"}
    tables = []
    for (title, columns), name in zip(
        TABLES.items(), ("assumptions", "operations", "left"), strict=True
    ):
        texts = [
            {key: words.get(value, value) for key, value in row.items()} for row in report[name]
        ]
        cells = [[form.format_map(row) for form in columns.values()] for row in texts]
        cells.sort(key=lambda row: order.get(row[1], 0))
        tables.append((title, list(columns), cells))
    return tables


def propose_settings(report: Report, settings: Settings) -> str:
    """Returns a diff of the configuration with the settings that suit the service, or nothing."""
    verdicts = {row["name"]: row["verdict"] for row in report["assumptions"]}
    offered = [row.setting for row in ASSUMPTIONS if verdicts[row.name] in (HANDLED, NOTICED)]
    paths = [f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS if endpoint.is_optional]
    if all(verdicts[path] == HANDLED for path in paths):
        offered.append('upstream.inferred_operations = "avoid"')
    lines = []
    for place, _, value in (text.partition(" = ") for text in offered if text):
        section, key = place.split(".")
        if (old := json.dumps(getattr(getattr(settings, section), key))) != value:
            lines += [f"@@ [{section}] @@", f"-{key} = {old}", f"+{key} = {value}"]
    return "\n".join(["--- gateway.toml", "+++ gateway.toml", *lines]) if lines else ""


def render_rehearsal_page(report: Report) -> str:
    """Renders the report as one self-contained HTML page."""
    template = files("gateway.operator.rehearsal").joinpath("page.html.j2").read_text("utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(template).render(
        report=report, tables=list_tables(report), colours=COLOURS
    )
