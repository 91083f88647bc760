"""Prints the figures as a table, as JSON and as a chart."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from math import log10
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tests.bench import machine
from tests.bench.figures import (
    DIRECT,
    Goal,
    RoundsByWorkload,
    compute_durable_writes,
    list_goals,
    summarize,
)

COLUMNS = ("cpu", "per_second", "p50", "p99", "alone_p50")
HEAD = (
    f"{'':<28}{'CPU µs/request':>28}{'requests/s':>12}{'p50 ms':>9}{'p99 ms':>9}{'alone p50':>11}"
)


def format_table(
    rounds_by_workload: RoundsByWorkload, missing: Mapping[str, str], more_goals: Sequence[Goal]
) -> str:
    """Medians, and the range of the CPU time."""
    lines, previous_workload = [HEAD], ""
    for (workload, name), rounds in rounds_by_workload.items():
        if workload != previous_workload:
            lines += ["", workload]
            previous_workload = workload
        figures = {column: summarize(rounds, column) for column in COLUMNS}
        alone_column = f"{figures['alone_p50'].median:>11.2f}"
        if name == DIRECT:
            lines.append(f"  {name:<26}{'':>58}{alone_column}")
            continue
        cpu = figures["cpu"]
        cpu_column = f"{cpu.median:,.0f} ({cpu.least:,.0f} to {cpu.most:,.0f})"
        lines.append(
            f"  {name:<26}{cpu_column:>28}{figures['per_second'].median:>12,.1f}"
            f"{figures['p50'].median:>9.2f}{figures['p99'].median:>9.2f}{alone_column}"
        )
    lines += [
        "",
        *_format_goals([*list_goals(rounds_by_workload), *more_goals]),
        "",
        *_format_durable_writes(rounds_by_workload),
    ]
    return "\n".join([*lines, *(f"left out: {name}: {reason}" for name, reason in missing.items())])


def _format_goals(goals: Sequence[Goal]) -> list[str]:
    lines = [f"{'goal':<72}{'measured':>10}{'goal':>10}"]
    for goal in goals:
        limit = f"{'≤' if goal.at_most else '≥'} {goal.goal:g}"
        verdict = "met" if goal.is_met else "NOT MET"
        lines.append(f"{goal.what:<72}{goal.measured:>9.2f}{goal.unit}{limit:>10}  {verdict}")
    return lines


def _format_durable_writes(rounds_by_workload: RoundsByWorkload) -> list[str]:
    return [
        f"{name:<72}{rate:>10,.1f} a second"
        for name, rate in compute_durable_writes(rounds_by_workload).items()
    ]


def build_document(
    rounds_by_workload: RoundsByWorkload,
    missing: Mapping[str, str],
    options: Mapping[str, Any],
    more_goals: Sequence[Goal],
) -> str:
    rows = [
        {
            "work": work,
            "contestant": name,
            **{column: asdict(summarize(rounds, column)) for column in COLUMNS},
            "rounds": [asdict(entry) for entry in rounds],
        }
        for (work, name), rounds in rounds_by_workload.items()
    ]
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "pinned": machine.is_pinned(),
            "load": os.getloadavg(),
        },
        "options": dict(options),
        "left_out": dict(missing),
        "measured": rows,
        "goals": [
            {**asdict(entry), "met": entry.is_met}
            for entry in [*list_goals(rounds_by_workload), *more_goals]
        ],
        "durable_writes_per_second": compute_durable_writes(rounds_by_workload),
    }
    return json.dumps(document, indent=1)


ROW_HEIGHT, LABEL_WIDTH, CHART_WIDTH = 18, 250, 420
COLOURS = ("#8a8f98", "#c2702e", "#3c8a4e", "#a3872a", "#2b5fb0", "#7a4fb0")


def render_chart(rounds_by_workload: RoundsByWorkload) -> str:
    """A bar chart of CPU time per request on a logarithmic scale; shorter is better."""
    cpu_figures = {
        key: summarize(rounds, "cpu")
        for key, rounds in rounds_by_workload.items()
        if key[1] != DIRECT
    }
    names = list(dict.fromkeys(name for _, name in cpu_figures))
    max_cpu = max(cpu_figure.most for cpu_figure in cpu_figures.values())
    parts, y, previous_workload = [], 34, ""
    for (workload, name), cpu in cpu_figures.items():
        if workload != previous_workload:
            y += ROW_HEIGHT
            parts.append(f'<text x="8" y="{y}" font-weight="bold">{escape(workload)}</text>')
            y, previous_workload = y + 6, workload
        bar_width = CHART_WIDTH * log10(max(cpu.median, 10) / 10) / log10(max_cpu / 10)
        colour = COLOURS[names.index(name) % len(COLOURS)]
        parts.append(
            f'<text x="20" y="{y + 13}">{escape(name)}</text>'
            f'<rect x="{LABEL_WIDTH}" y="{y + 2}" width="{bar_width:.0f}" height="{ROW_HEIGHT - 5}" fill="{colour}"/>'
            f'<text x="{LABEL_WIDTH + bar_width + 6:.0f}" y="{y + 13}">{cpu.median:,.0f} µs</text>'
        )
        y += ROW_HEIGHT
    size = f'width="{LABEL_WIDTH + CHART_WIDTH + 110}" height="{y + 14}"'
    head = '<text x="8" y="20">CPU time for each request; the scale is logarithmic</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{head}{"".join(parts)}</svg>\n'
    )


def write_report(folder: Path, rounds_by_workload: RoundsByWorkload, json_document: str) -> None:
    (folder / "bench.json").write_text(json_document + "\n", "utf-8")
    (folder / "bench.svg").write_text(render_chart(rounds_by_workload), "utf-8")
