"""Links in the documentation have existing targets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(p for r in ("deploy", "gateway", "mappings") for p in (ROOT / r).rglob("*.md")),
]
LINK_PATTERN = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def list_anchors(page: Path) -> set[str]:
    """Lists the anchors of a page, as GitHub generates them."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {build_anchor(heading) for heading in headings} | set(
        re.findall(r'<a (?:id|name)="([^"]+)"', text)
    )


def build_anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lstrip("# ").lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_existing_targets(page: Path) -> None:
    missing_targets = []
    for path, anchor in LINK_PATTERN.findall(page.read_text("utf-8")):
        target_file = page.parent / path if path else page
        if not target_file.exists() or (anchor and anchor not in list_anchors(target_file)):
            missing_targets.append(f"{path}#{anchor}")
    assert missing_targets == []


def test_pages_contain_links() -> None:
    assert sum(len(LINK_PATTERN.findall(page.read_text("utf-8"))) for page in PAGES) > 60


def test_architecture_names_existing_modules() -> None:
    page = ROOT / "gateway" / "README.md"
    names = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", page.read_text("utf-8"))
    modules = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("*/**/*.py")]
    missing_targets = [
        name for name in names if not any(f"/{path}".endswith(f"/{name}") for path in modules)
    ]
    assert names
    assert missing_targets == []
