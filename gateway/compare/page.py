"""The report as one page: no request to anywhere, readable from a file, on paper and by keyboard."""

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
"""What stands before a kind's name; the others are ≠."""

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
        # Ours, and free of anything from outside; named by their hashes in the page's policy.
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
    """How many differences of each kind there are, in the order in which kinds are told."""
    found = [one["kind"] for one in differences]
    return {kind: found.count(kind) for kind in KINDS if kind in found}
