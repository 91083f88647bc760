"""The report of a rehearsal: one document, which is printed or written as JSON."""

import json
from datetime import UTC, datetime
from typing import Any

from gateway.config.settings import Settings
from gateway.observability.plurals import pluralize
from gateway.operator.rehearsal.checks import ASSUMPTIONS, IS_OPTIONAL, Assumption
from gateway.operator.rehearsal.run import ENVIRONMENT, RehearsalRun
from gateway.operator.rehearsal.scenario import START, STEPS
from mappings import OPERATIONS

Report = dict[str, Any]
"""The JSON document of ``rehearse --json``."""

NOTICED, HANDLED = "differs: clients would notice", "differs: handled"
NOT_TRIED, HOLDS = "not tried", "holds"
COLOURS = {NOTICED: "red", HANDLED: "yellow", NOT_TRIED: "", HOLDS: "green"}
"""The verdicts of a row, most urgent first."""
COLUMNS = ["assumption", "verdict", "seen", "if it differs, the gateway", "would clients notice"]

OPERATION_ROWS = [
    Assumption(each.name, f"{each.method} /v1{each.path} works", "passes on what was seen", "yes")
    for each in OPERATIONS
]
START_ROWS = {"wallet account", *(step.row for step in STEPS if step.chapter == START)} - {
    step.row for step in STEPS if step.chapter != START
}


def build_report(run: RehearsalRun, left: list[dict[str, Any]], stop_reason: str) -> Report:
    rows = []
    for row in [*ASSUMPTIONS, *OPERATION_ROWS]:
        needs_start = row.name in START_ROWS and not run.may_start
        reason = "needs --start" if needs_start else "no call was made for it, or none shows it"
        holds, seen = run.results.get(row.name, (None, reason))
        is_noticed = row.noticed in ("yes", f"if {seen}")
        # With the setting that is offered for it, clients do not notice it any more.
        is_noticed = is_noticed and not _is_in_effect(row.setting, run.settings)
        verdict = NOTICED if is_noticed else HANDLED
        rows.append(
            {
                "name": row.name,
                "presumed": row.statement,
                "verdict": {True: HOLDS, None: NOT_TRIED}.get(holds, verdict),
                "seen": seen,
                "if_different": row.effect,
                "clients_would_notice": row.noticed or "no",
            }
        )
    verdicts = [row["verdict"] for row in rows]
    counts = {verdict: verdicts.count(verdict) for verdict in COLOURS}
    differences = f"{pluralize(counts[NOTICED], 'difference')} that clients would notice"
    text = differences if counts[NOTICED] else "clients would notice nothing"
    text += f"; {counts[HANDLED]} handled, {counts[NOT_TRIED]} not tried, {counts[HOLDS]} hold"
    return {
        "verdict": f"not finished: {stop_reason}" if stop_reason else text,
        "exit_code": 2 if stop_reason else int(bool(counts[NOTICED])),
        "environment": ENVIRONMENT,
        "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "counts": counts,
        "rows": sorted(rows, key=lambda row: [*counts].index(row["verdict"])),
        "left": left,
    }


def propose_settings(report: Report, settings: Settings) -> list[str]:
    """Lists the settings (``section.key = value``) that suit the service and are not in effect."""
    verdicts = {row["name"]: row["verdict"] for row in report["rows"]}
    offered = [row.setting for row in ASSUMPTIONS if verdicts[row.name] in (HANDLED, NOTICED)]
    if all(verdicts[path] == HANDLED for path in IS_OPTIONAL if IS_OPTIONAL[path]):
        offered.append('upstream.inferred_operations = "avoid"')
    needed = (each for each in offered if each and not _is_in_effect(each, settings))
    return [*dict.fromkeys(needed)]


def _is_in_effect(setting: str, settings: Settings) -> bool:
    place, _, value = setting.partition(" = ")
    section, _, key = place.partition(".")
    return bool(setting) and json.dumps(getattr(getattr(settings, section), key)) == value
