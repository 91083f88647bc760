"""Renders the report as one self-contained HTML page without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from gateway.compare.differences import KIND_DESCRIPTIONS

STEP_NOUNS = {"scenario": "step", "recorded traffic": "entry", "list of reads": "line"}


def render_report_page(report: Mapping[str, Any]) -> str:
    template = files("gateway.compare").joinpath("page.html.j2").read_text(encoding="utf-8")
    # StrictUndefined: a renamed field of the report must fail, not leave an empty cell.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(template).render(
        report=report,
        meanings=KIND_DESCRIPTIONS,
        places={each["name"]: STEP_NOUNS[each["kind"]] for each in report["inputs"]},
    )
