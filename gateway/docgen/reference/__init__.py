"""Two pages of reference, written from what the gateway itself goes by; `make docs` writes them."""

from __future__ import annotations

from pathlib import Path

from gateway.docgen.reference import configuration, operations

EXAMPLE = Path("deploy/gateway.example.toml")
"""Where the meaning of each key is written, once: operators copy that file."""


def render_reference_pages(root: Path) -> dict[Path, str]:
    """Both pages, by where they stand in a checkout."""
    example = (root / EXAMPLE).read_text("utf-8")
    return {
        root / "deploy" / "configuration.md": configuration.render_configuration_page(example),
        root / "mappings" / "operations.md": operations.render_operations_page(),
    }
