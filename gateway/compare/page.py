"""Renders the report as one self-contained HTML page, for screen, print and keyboard."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from gateway.compare.differences import KINDS
from gateway.compare.report_schema import Group, Report

SIGNS = {
    "missing": "\N{MINUS SIGN}",
    "extra": "+",
    "order": "↕",
    "duplicate": "2\N{MULTIPLICATION SIGN}",
}
"""Symbols of the kinds of difference; all others have ≠."""

PLACES = {"scenario": "step", "recorded traffic": "entry", "list of reads": "line"}


def render_report_page(report: Report) -> str:
    style, script = _text("page.css"), _text("page.js")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_text("page.html.j2")).render(
        report=report,
        by_operation=_by_operation(report["differences"]),
        kinds=_kinds(report["differences"]),
        meanings=KINDS,
        places={one["name"]: PLACES[one["kind"]] for one in report["inputs"]},
        signs=SIGNS,
        # Constant files of this package without input; the page's CSP allows them by hash.
        style=Markup(style),  # noqa: S704
        script=Markup(script),  # noqa: S704
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _text(name: str) -> str:
    return files("gateway.compare").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _by_operation(differences: list[Group]) -> list[tuple[str, list[Group]]]:
    grouped: dict[str, list[Group]] = {}
    for one in differences:
        grouped.setdefault(one["request"], []).append(one)
    return [*grouped.items()]


def _kinds(differences: list[Group]) -> dict[str, int]:
    """Counts the differences of each kind, in the order of ``KIND_DESCRIPTIONS``."""
    found = [one["kind"] for one in differences]
    return {kind: found.count(kind) for kind in KINDS if kind in found}
