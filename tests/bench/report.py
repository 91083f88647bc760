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
    Measured,
    compute_durable_writes,
    list_goals,
    summarize,
)

COLUMNS = ("cpu", "per_second", "p50", "p99", "alone_p50")
HEAD = (
    f"{'':<28}{'CPU µs/request':>28}{'requests/s':>12}{'p50 ms':>9}{'p99 ms':>9}{'alone p50':>11}"
)


def format_table(measured: Measured, missing: Mapping[str, str], more: Sequence[Goal]) -> str:
    """Medians, and the range of the CPU time."""
    lines, work = [HEAD], ""
    for (of_work, name), rounds in measured.items():
        if of_work != work:
            lines += ["", of_work]
            work = of_work
        found = {what: summarize(rounds, what) for what in COLUMNS}
        alone = f"{found['alone_p50'].median:>11.2f}"
        if name == DIRECT:
            lines.append(f"  {name:<26}{'':>58}{alone}")
            continue
        cpu = found["cpu"]
        told = f"{cpu.median:,.0f} ({cpu.least:,.0f} to {cpu.most:,.0f})"
        lines.append(
            f"  {name:<26}{told:>28}{found['per_second'].median:>12,.1f}"
            f"{found['p50'].median:>9.2f}{found['p99'].median:>9.2f}{alone}"
        )
    lines += [
        "",
        *_format_goals([*list_goals(measured), *more]),
        "",
        *_format_durable_writes(measured),
    ]
    return "\n".join([*lines, *(f"left out: {name}: {why}" for name, why in missing.items())])


def _format_goals(held: Sequence[Goal]) -> list[str]:
    lines = [f"{'goal':<72}{'measured':>10}{'goal':>10}"]
    for one in held:
        bound = f"{'≤' if one.at_most else '≥'} {one.goal:g}"
        mark = "met" if one.is_met else "NOT MET"
        lines.append(f"{one.what:<72}{one.measured:>9.2f}{one.unit}{bound:>10}  {mark}")
    return lines


def _format_durable_writes(measured: Measured) -> list[str]:
    return [
        f"{what:<72}{per:>10,.1f} a second"
        for what, per in compute_durable_writes(measured).items()
    ]


def build_document(
    measured: Measured,
    missing: Mapping[str, str],
    options: Mapping[str, Any],
    more: Sequence[Goal],
) -> str:
    rows = [
        {
            "work": work,
            "contestant": name,
            **{what: asdict(summarize(rounds, what)) for what in COLUMNS},
            "rounds": [asdict(one) for one in rounds],
        }
        for (work, name), rounds in measured.items()
    ]
    told = {
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
        "goals": [{**asdict(one), "met": one.is_met} for one in [*list_goals(measured), *more]],
        "durable_writes_per_second": compute_durable_writes(measured),
    }
    return json.dumps(told, indent=1)


ROW, LEFT, WIDE = 18, 250, 420
COLOURS = ("#8a8f98", "#c2702e", "#3c8a4e", "#a3872a", "#2b5fb0", "#7a4fb0")


def render_chart(measured: Measured) -> str:
    """A bar chart of CPU time per request on a logarithmic scale; shorter is better."""
    shown = {key: summarize(rounds, "cpu") for key, rounds in measured.items() if key[1] != DIRECT}
    names = list(dict.fromkeys(name for _, name in shown))
    top = max(one.most for one in shown.values())
    parts, y, work = [], 34, ""
    for (of_work, name), cpu in shown.items():
        if of_work != work:
            y += ROW
            parts.append(f'<text x="8" y="{y}" font-weight="bold">{escape(of_work)}</text>')
            y, work = y + 6, of_work
        wide = WIDE * log10(max(cpu.median, 10) / 10) / log10(top / 10)
        colour = COLOURS[names.index(name) % len(COLOURS)]
        parts.append(
            f'<text x="20" y="{y + 13}">{escape(name)}</text>'
            f'<rect x="{LEFT}" y="{y + 2}" width="{wide:.0f}" height="{ROW - 5}" fill="{colour}"/>'
            f'<text x="{LEFT + wide + 6:.0f}" y="{y + 13}">{cpu.median:,.0f} µs</text>'
        )
        y += ROW
    size = f'width="{LEFT + WIDE + 110}" height="{y + 14}"'
    head = '<text x="8" y="20">CPU time for each request; the scale is logarithmic</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{head}{"".join(parts)}</svg>\n'
    )


def write_report(folder: Path, measured: Measured, document_: str) -> None:
    (folder / "bench.json").write_text(document_ + "\n", "utf-8")
    (folder / "bench.svg").write_text(render_chart(measured), "utf-8")
