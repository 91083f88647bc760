"""`python -m gateway.docgen.reference`, run in a checkout, regenerates the reference pages."""

from __future__ import annotations

from pathlib import Path

from gateway.docgen.reference import render_reference_pages

for path, text in render_reference_pages(Path(__file__).parents[3]).items():
    path.write_text(text, "utf-8")
