"""Generates the reference pages of configuration, operations and states. `make docs` writes them."""

from __future__ import annotations

from pathlib import Path

from gateway.docgen.reference import configuration, operation_states, operations

EXAMPLE_CONFIGURATION = Path("deploy/gateway.example.toml")
"""The example configuration, whose comments describe each key."""


def render_reference_pages(root: Path) -> dict[Path, str]:
    """Renders the pages, by their path in a checkout."""
    example = (root / EXAMPLE_CONFIGURATION).read_text("utf-8")
    return {
        root / "deploy" / "configuration.md": configuration.render_configuration_page(example),
        root / "mappings" / "operations.md": operations.render_operations_page(),
        root / "gateway" / "storage" / "operation_states.md": operation_states.render_states_page(),
    }
