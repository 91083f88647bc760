"""Renders the report as one self-contained HTML page, for screen, print and keyboard."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from gateway.compare.differences import KIND_DESCRIPTIONS
from gateway.compare.report_schema import DifferenceEntry, Report

KIND_SIGNS = {
    "missing": "\N{MINUS SIGN}",
    "extra": "+",
    "order": "↕",
    "duplicate": "2\N{MULTIPLICATION SIGN}",
}
"""Symbols of the kinds of difference; all others have ≠."""

STEP_NOUNS = {"scenario": "step", "recorded traffic": "entry", "list of reads": "line"}


def render_report_page(report: Report) -> str:
    style, script = _load_resource("page.css"), _load_resource("page.js")
    environment = Environment(
        # StrictUndefined: a renamed field of the report must fail, not leave an empty cell.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.from_string(_load_resource("page.html.j2")).render(
        report=report,
        by_operation=_group_by_operation(report["differences"]),
        meanings=KIND_DESCRIPTIONS,
        places={
            input_entry["name"]: STEP_NOUNS[input_entry["kind"]] for input_entry in report["inputs"]
        },
        signs=KIND_SIGNS,
        # Constant files of this package without input; the page's CSP allows them by hash.
        style=Markup(style),  # noqa: S704
        script=Markup(script),  # noqa: S704
        style_hash=_compute_csp_hash(style),
        script_hash=_compute_csp_hash(script),
    )


def _load_resource(name: str) -> str:
    return files("gateway.compare").joinpath(name).read_text(encoding="utf-8")


def _compute_csp_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _group_by_operation(
    differences: list[DifferenceEntry],
) -> list[tuple[str, list[DifferenceEntry]]]:
    grouped: dict[str, list[DifferenceEntry]] = {}
    for difference in differences:
        grouped.setdefault(difference["request"], []).append(difference)
    return [*grouped.items()]
