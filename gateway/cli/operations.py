"""`payout-gateway operations`: lists the legacy operations and the calls that replace them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from gateway.cli.options import load_command_settings
from gateway.cli.output import print_table, run_to_completion
from gateway.config.settings import Settings
from mappings.grammar import Operation
from mappings.provenance import list_current_calls

_UNTRIED = "not tried yet"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Default: gateway.toml if it exists.",
)
def operations(*, config: Path | None, as_json: bool) -> None:
    """List the legacy operations: the calls that replace each, how exactly, and why.

    With a configuration, also shows which endpoints that the current document does not list were
    found at each environment's service.
    """
    from mappings import OPERATIONS, UNLISTED

    listed = [_as_json(one) for one in OPERATIONS]
    unlisted = [_as_json(one) for one in UNLISTED]
    settings = load_command_settings(config)
    found = run_to_completion(_found_out(settings)) if settings.environments.configured() else {}
    if as_json:
        told = {"operations": listed, "unlisted": unlisted, "inferred": found}
        click.echo(json.dumps(told, indent=2))
        return
    _show("Legacy interface", listed)
    click.echo()
    _show("Used by clients, but not listed by the legacy document", unlisted)
    for environment, those in found.items():
        click.echo(
            f"\nEndpoints that the current document does not list, at the {environment} service\n"
        )
        print_table(
            ["operation", "found", "when"],
            [[one["operation"], one["found"], one["at"] or "-"] for one in those],
        )


def _as_json(operation: Operation) -> dict[str, Any]:
    return {
        "name": operation.name,
        "method": operation.method,
        "path": f"/v1{re.sub('[<>]', '', operation.path)}",
        "section": operation.section,
        "exactness": operation.exactness,
        "becomes": list_current_calls(operation),
        "because": operation.because,
        "rests_on": operation.rests_on or None,
    }


def _show(heading: str, rows: list[dict[str, Any]]) -> None:
    click.echo(f"{heading}\n")
    for row in rows:
        said = f"{row['name']}, section {row['section']}, {row['exactness']}"
        click.echo(f"{row['method']} {row['path']}  ({said})")
        width = max(len(one["call"]) for one in row["becomes"])
        for one in row["becomes"]:
            click.echo(f"    {one['call']:{width}}  {one['note']}".rstrip())
        click.echo(f"    because: {row['because']}")
        if row["rests_on"]:
            click.echo(f"    assumes: {row['rests_on']}")


async def _found_out(settings: Settings) -> dict[str, list[dict[str, Any]]]:
    """What is known of each optional endpoint, by environment; empty if there is no state."""
    from gateway.storage import Ledger, StoreUnavailable, open_store

    try:
        async with open_store(settings.state, create=False) as store:
            learned = {
                name: await Ledger(store).learned(name)
                for name in settings.environments.configured()
            }
    # The rest of the report needs no state.
    except StoreUnavailable as unavailable:
        click.echo(
            f"Warning: endpoint discovery results are not available: {unavailable}", err=True
        )
        return {}
    return {name: _inferred(facts) for name, facts in learned.items()}


def _inferred(facts: dict[str, tuple[Any, datetime]]) -> list[dict[str, Any]]:
    from mappings.current import ENDPOINTS

    names = [f"{one.method} {one.path}" for one in ENDPOINTS if one.inferred]
    return [_told(name, facts.get(f"inferred {name}")) for name in names]


def _told(name: str, fact: tuple[Any, datetime] | None) -> dict[str, Any]:
    if fact is None:
        return {"operation": name, "found": _UNTRIED, "at": None}
    value, _learned_at = fact
    found = "present" if value["present"] else "absent"
    return {
        "operation": name,
        "found": found,
        "at": f"{datetime.fromtimestamp(value['at'], UTC):%Y-%m-%dT%H:%M:%SZ}",
    }
